"""Scatter, decide, gather: a butterfly all-reduce under deadlines, one decision for all parts (docs/protocol.md §6).

Member ``i`` reduces part ``i``. Reducers report on every sender, the leader decides once, and each reducer sends the
same encoded bytes to all. Everyone, the reducer included, applies the decoded bytes; so all who commit hold the same
values.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.peer.book import EntryRefused
from blockswarm.peer.exchange import Exchange, RoundFailed, off_loop
from blockswarm.swarm.codec import CodecError, decode, encode, is_lossless
from blockswarm.swarm.policy.acceptance import PartReport, Verdict, decide
from blockswarm.swarm.policy.robust import Robust, own_share, robust_mean
from blockswarm.swarm.statements import Decision

OWED_AT_MOST = 2.0
"""A reducer counts what encoding lost of everybody's mean at most this many times the group's size as its own work.

With equal weights once the size is all of it. A reducer with few samples would count it hundreds of times: an update so
long that its peers would refuse it, with everything it has trained.
"""

TAKE_OVER = 0.5
"""Share of the decide phase after which the next in order decides in the leader's place."""


def squared_norm(values: npt.NDArray[np.float32]) -> float:
    """Squared Euclidean norm; not finite when any value is not, or when they are too large to be an update."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(values, values))


def open_part(
    data: bytes | bytearray | memoryview, count: int, compression: str
) -> tuple[npt.NDArray[np.float32], float]:
    """A part as everyone decodes it, and its squared norm; NaN as the norm of bytes that mean no finite values."""
    try:
        values = decode(data, count, compression)
    except CodecError:
        return np.empty(0, dtype=np.float32), math.nan
    return values, squared_norm(values)


async def scatter(exchange: Exchange) -> dict[int, npt.NDArray[np.float32]]:
    """Send each reducer its part of our update; collect the parts that are ours to reduce; report on them.

    Returns
    -------
    dict
        List position → our own values of that part as the reducer decodes them (what the average will contain of us).
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.scatter_end, "scattering")
    members = book.require_members()
    compression = exchange.compression
    sent: dict[int, npt.NDArray[np.float32]] = {}
    for part, (begin, end) in enumerate(book.bounds):
        if end == begin:
            continue
        data, values, norm2 = await off_loop(4 * (end - begin), _pack, exchange.delta[begin:end], compression)
        sent[part] = values
        if members.members[part] == exchange.own_id:
            book.add_share(exchange.own_id, values, norm2)
        else:
            exchange.send(
                exchange.call(
                    members.members[part],
                    "round.part",
                    {
                        "subject": book.subject,
                        "round": book.round,
                        "list": members.statement.raw,
                        "values": len(exchange.delta),
                    },
                    until=times.scatter_end,
                    blob=data,
                    values=end - begin,
                )
            )
    if book.own_part in book.reducers():
        await book.wait(lambda: book.all_shares_in, exchange.left(times.scatter_end))
        report_shares(exchange)
    return sent


def _pack(values: npt.NDArray[np.float32], compression: str) -> tuple[bytes, npt.NDArray[np.float32], float]:
    data = encode(values, compression)
    return data, *open_part(data, len(values), compression)


def report_shares(exchange: Exchange) -> None:
    """Tell every member what came of our part from each sender. What has not come by now is late."""
    book = exchange.book
    members = book.require_members()
    report = {peer_id: book.shares.get(peer_id, PartReport(0.0, "late")) for peer_id in members.members}
    for peer_id, entry in report.items():
        if entry.problem:
            book.refuse_share(peer_id, entry.problem)
    book.add_report(exchange.own_id, report)
    body: dict[str, Any] = {
        "subject": book.subject,
        "round": book.round,
        "group": members.group,
        "senders": [
            {"peer": peer_id, "norm2": entry.norm2, "problem": entry.problem} for peer_id, entry in report.items()
        ],
    }
    exchange.broadcast(members.members, "round.report", body, until=exchange.times.decide_end)


async def agree(exchange: Exchange) -> Decision:
    """Wait for the leader's decision, or make it when it is ours to make.

    Raises
    ------
    RoundFailed
        When no acceptable decision came in time.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.decide_end, "deciding")
    members = book.require_members()
    rank = book.own_part
    span = times.decide_end - times.scatter_end
    if rank < 2:
        patience = times.scatter_end + (0.4 if rank == 0 else TAKE_OVER) * span
        await book.wait(
            lambda: book.decision is not None or (rank == 0 and book.all_reports_in), exchange.left(patience)
        )
        if book.decision is None:
            _decide(exchange)
    await book.wait(lambda: book.decision is not None, exchange.left(times.decide_end))
    if book.decision is None:
        raise RoundFailed(f"no decision from {members.members[0]} before the phase ended")
    return book.decision


def verdict_of(exchange: Exchange) -> Verdict:
    """What the reports that have come here say of every sender."""
    settings, book = exchange.manifest.averaging, exchange.book
    return decide(
        book.require_members().samples,
        list(book.reports.values()),
        max_norm_ratio=settings.max_norm_ratio,
        max_weight_ratio=settings.max_weight_ratio,
        robust=settings.robust,
        clip_ratio=settings.clip_ratio,
    )


def _decide(exchange: Exchange) -> None:
    book = exchange.book
    members = book.require_members()
    verdict = verdict_of(exchange)
    if not verdict.weights:
        raise RoundFailed("no update came whole and in time: " + _reasons(verdict.rejected))
    reported = tuple(index for index in book.reducers() if members.members[index] in book.reports)
    decision = Decision.make(
        exchange.identity,
        exchange.manifest.digest,
        group=members.group,
        weights=verdict.weights,
        rejected=verdict.rejected,
        clips=verdict.clips,
        parts=reported,
    )
    try:
        book.accept_decision(decision)
    except EntryRefused:  # the other one's decision came first
        return
    exchange.broadcast(
        members.members,
        "round.decision",
        {"subject": book.subject, "round": book.round, "decision": decision.statement.raw},
        until=exchange.times.decide_end,
    )


def _reasons(rejected: dict[str, str]) -> str:
    return "; ".join(f"{peer_id} {reason}" for peer_id, reason in rejected.items())


async def gather(exchange: Exchange) -> None:
    """Reduce our part, send it to all, and collect the other parts until the phase ends or all are in."""
    book, times = exchange.book, exchange.times
    exchange.require_before(times.gather_end, "gathering")
    members = book.require_members()
    decision = book.decision
    if decision is None:
        raise RoundFailed("no decision")
    if book.own_part in decision.parts:
        begin, end = book.own_bounds
        size = 4 * (end - begin) * len(decision.weights)
        settings = exchange.manifest.averaging
        reduced = await off_loop(
            size,
            reduce_part,
            book.share_values,
            decision.weights,
            exchange.compression,
            decision.clips,
            settings.robust,
            exchange.own_id,
        )
        exchange.shortened = reduced.shortened
        exchange.owed = reduced.owed
        book.add_result(book.own_part, reduced.data, reduced.digest)
        body = {
            "subject": book.subject,
            "round": book.round,
            "group": members.group,
            "part": book.own_part,
            "decision": decision.statement.raw,
        }
        exchange.broadcast(
            members.members, "round.result", body, until=times.gather_end, blob=reduced.data, values=end - begin
        )
        await asyncio.sleep(0)
    await book.wait(lambda: book.all_results_in or book.outcome is not None, exchange.left(times.gather_end))


@dataclass(frozen=True)
class Reduced:
    """A reduced part."""

    data: bytes
    """The encoded mean."""
    digest: bytes
    """Its SHA-256."""
    owed: npt.NDArray[np.float32] | None
    """What encoding lost of it (mean minus decoded), in units of the reducer's own update; None when nothing was lost,
    or the reducer's update is not in the mean."""
    shortened: dict[str, float]
    """See `robust_mean`."""


def reduce_part(
    shares: Mapping[str, npt.NDArray[np.float32]],
    weights: Mapping[str, float],
    compression: str,
    clips: Mapping[str, float] | None = None,
    robust: Robust = "none",
    own_id: str = "",
) -> Reduced:
    """The mean of the accepted senders' parts as it goes on the wire, and what its reducer ``own_id`` owes for it."""
    mean, shortened = robust_mean(shares, weights, clips or {}, robust)
    data = encode(mean, compression)
    owed: npt.NDArray[np.float32] | None = None
    if own_id in weights and not is_lossless(compression):
        owed = mean - decode(data, len(mean), compression)
        if owed.any():
            owed *= np.float32(min(1.0 / own_share(weights, own_id, robust), OWED_AT_MOST * len(weights)))
        else:
            owed = None
    return Reduced(data, hashlib.sha256(data).digest(), owed, shortened)
