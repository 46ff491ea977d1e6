"""Scatter, decide, gather: a butterfly all-reduce under deadlines, one decision for all parts (docs/protocol.md §6).

Member ``i`` reduces part ``i``. Reducers report on every sender, the leader decides once, and each reducer sends the
same encoded bytes to all. Everyone, the reducer included, applies the decoded bytes; so all who commit hold the same
values.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.peer.book import EntryRefused
from blockswarm.peer.exchange import Exchange, RoundFailed, off_loop
from blockswarm.swarm.codec import CodecError, decode, encode, encoded_size, is_lossless
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


async def scatter(exchange: Exchange) -> npt.NDArray[np.float32]:
    """Send each reducer of our group its slice of our update; collect what is ours to reduce; report on it.

    Returns
    -------
    ndarray of float32
        Our update as the reducers decode it: what the average will contain of us.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.scatter_end, "scattering")
    compression = exchange.compression
    upload = _Upload(exchange)
    seen = np.empty_like(exchange.delta)
    sent: dict[int, asyncio.Task[None]] = {}
    for position in book.reducers():
        begin, end = book.seats.slice_of(position)
        data, seen[begin:end], norm2 = await off_loop(4 * (end - begin), _pack, exchange.delta[begin:end], compression)
        if position == book.own_part:
            book.add_share(exchange.own_id, seen[begin:end], norm2)
        else:
            sent[position] = exchange.send(_send_part(exchange, position, data, end - begin, upload))
    await _scatter_guests(exchange, sent)
    if book.own_part in book.reducers():
        await book.wait(lambda: book.all_shares_in, exchange.left(times.scatter_end))
        report_shares(exchange)
    return seen


async def _send_part(
    exchange: Exchange,
    position: int,
    data: bytes,
    values: int,
    upload: _Upload | None = None,
    *,
    of: str | None = None,
    after: asyncio.Task[None] | None = None,
) -> None:
    """Send a reducer its slice of an update: ours, or that ``of`` a contributor, ``after`` another one."""
    if after is not None:
        await asyncio.wait({after})  # a call, bounded by the phase
    book = exchange.book
    members = book.require_members()
    body = {
        "subject": book.subject,
        "round": book.round,
        "list": members.statement.raw,
        "values": len(exchange.delta),
    }
    target, until = members.members[position], exchange.times.scatter_end
    body |= {"of": of} if of is not None else {}
    reply = await exchange.call(target, "round.part", body, until=until, blob=data, values=values)
    if upload is not None:
        upload.note(len(data), arrived=reply is not None)


class _Upload:
    """How long sending a whole update takes on our line, from the parts of it that were sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._begin = exchange.clock.now()
        self._arrived = 0

    def note(self, size: int, *, arrived: bool) -> None:
        """A part has arrived, or its time was up: then all of them together take longer than the phase."""
        exchange = self._exchange
        seconds = exchange.clock.now() - self._begin
        if arrived:
            self._arrived += size
            whole = encoded_size(len(exchange.delta), exchange.compression)
            exchange.upload_seconds = seconds * whole / max(1, self._arrived)
        elif not self._arrived and exchange.clock.now() >= exchange.times.scatter_end:
            span = exchange.times.scatter_end - exchange.times.meet_end
            exchange.upload_seconds = max(seconds, 1.01 * span)


async def _scatter_guests(exchange: Exchange, own: Mapping[int, asyncio.Task[None]]) -> None:
    """Send each reducer its slice of the contributors' updates that we bring in, behind our ``own``, byte for byte.

    Side by side they would share our line: our own slice, which costs us the round when it is late, would take twice as
    long, and what is measured of our upload would say that we have no room for a contributor.
    """
    book = exchange.book
    ours = {guest.contribution.peer_id: guest for guest in exchange.guests}
    settings, total = exchange.manifest.averaging, len(exchange.delta)
    for peer_id in book.senders():
        guest = ours.get(peer_id)
        if guest is None or book.sponsor(peer_id) != exchange.own_id:
            continue
        for position in book.reducers():
            begin, end = book.seats.slice_of(position)
            last = encoded_size(end, settings.compression) if end < total else len(guest.data)
            data = guest.data[encoded_size(begin, settings.compression) : last]
            if position == book.own_part:
                values, norm2 = await off_loop(4 * (end - begin), open_part, data, end - begin, settings.compression)
                book.add_share(peer_id, values, norm2)
            else:
                exchange.send(_send_part(exchange, position, data, end - begin, of=peer_id, after=own[position]))


def _pack(values: npt.NDArray[np.float32], compression: str) -> tuple[bytes, npt.NDArray[np.float32], float]:
    data = encode(values, compression)
    return data, *open_part(data, len(values), compression)


def report_shares(exchange: Exchange) -> None:
    """Tell every member of our group what came from each sender. What has not come by now is late."""
    book = exchange.book
    report = {peer_id: book.shares.get(peer_id, PartReport(0.0, "late")) for peer_id in book.senders()}
    for peer_id, entry in report.items():
        if entry.problem:
            book.refuse_share(peer_id, entry.problem)
    book.add_report(exchange.own_id, report)
    body: dict[str, Any] = {
        "subject": book.subject,
        "round": book.round,
        "group": book.require_members().group,
        "senders": [
            {"peer": peer_id, "norm2": entry.norm2, "problem": entry.problem} for peer_id, entry in report.items()
        ],
    }
    exchange.broadcast(book.group(), "round.report", body, until=exchange.times.decide_end)


async def agree(exchange: Exchange) -> None:
    """Wait for our group's leader's decision, or make it when it is ours to make.

    Where there are other groups, one without a decision is left out, and its members go on with what the others do.

    Raises
    ------
    RoundFailed
        When no acceptable decision came in time and there is no other group.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.decide_end, "deciding")
    group = book.group()
    rank = group.index(exchange.own_id)
    span = times.decide_end - times.scatter_end
    failure = f"no decision from {group[0]} before the phase ended"
    if rank < 2:
        patience = times.scatter_end + (0.4 if rank == 0 else TAKE_OVER) * span
        await book.wait(
            lambda: book.decision is not None or (rank == 0 and book.all_reports_in), exchange.left(patience)
        )
        if book.decision is None:
            failure = _decide(exchange) or failure
    if not (rank == 0 and book.decision is None):  # its own word was against it: nothing better comes
        await book.wait(lambda: book.decision is not None, exchange.left(times.decide_end))
    if book.decision is None and book.seats.count == 1:
        raise RoundFailed(failure)


def verdict_of(exchange: Exchange) -> Verdict:
    """What the reports that have come here say of every sender of our group."""
    settings, book = exchange.manifest.averaging, exchange.book
    samples = book.require_members().samples | {peer_id: guest.samples for peer_id, guest in book.guests.items()}
    senders = book.senders()
    return decide(
        {peer_id: samples[peer_id] for peer_id in senders},
        list(book.reports.values()),
        max_norm_ratio=settings.max_norm_ratio,
        max_weight_ratio=settings.max_weight_ratio,
        robust=settings.robust,
        clip_ratio=settings.clip_ratio,
        discounts={peer_id: book.discounts[peer_id] for peer_id in senders if peer_id in book.guests},
    )


def _decide(exchange: Exchange) -> str:
    """Sign our group's decision and send it to the whole list; why there can be none, or an empty text."""
    book = exchange.book
    members = book.require_members()
    verdict = verdict_of(exchange)
    if not verdict.weights:
        return "no update came whole and in time: " + _reasons(verdict.rejected)
    decision = Decision.make(
        exchange.identity,
        exchange.manifest.digest,
        group=members.group,
        weights=verdict.weights,
        rejected=verdict.rejected,
        clips=verdict.clips,
        parts={
            position: max((report[sender].norm2 for sender in verdict.weights if sender in report), default=0.0)
            for position in book.reducers()
            if (report := book.reports.get(members.members[position])) is not None
        },
    )
    try:
        book.accept_decision(decision)
    except EntryRefused:  # the other one's decision came first
        return ""
    exchange.broadcast(
        members.members,
        "round.decision",
        {"subject": book.subject, "round": book.round, "decision": decision.statement.raw},
        until=exchange.times.decide_end if book.seats.count == 1 else exchange.times.combine_end,
    )
    return ""


def _reasons(rejected: dict[str, str]) -> str:
    return "; ".join(f"{peer_id} {reason}" for peer_id, reason in rejected.items())


async def gather(exchange: Exchange) -> None:
    """Reduce our part, send it to all, and collect the other parts until the phase ends or all are in.

    The way of a list with one group; several go by `peer.combine`.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.gather_end, "gathering")
    decision = book.decision
    if decision is None:
        raise RoundFailed("no decision")
    if book.own_part in decision.parts:
        begin, end = book.own_slice
        reduced = (await reduce_slice(exchange, decision))[book.own_part]
        counted = {book.own_group: decision.statement.hash}
        book.add_result(book.own_part, reduced.data, reduced.digest, counted)
        exchange.broadcast(
            book.group(),
            "round.result",
            result_body(exchange, book.own_part, counted),
            until=times.gather_end,
            blob=reduced.data,
            values=end - begin,
        )
        await asyncio.sleep(0)
    await book.wait(lambda: book.all_results_in or book.outcome is not None, exchange.left(times.gather_end))


def result_body(exchange: Exchange, part: int, counted: Mapping[int, bytes]) -> dict[str, Any]:
    """What goes along with an averaged part: which groups are in it, and our own group's decision."""
    book = exchange.book
    return {
        "subject": book.subject,
        "round": book.round,
        "group": book.require_members().group,
        "part": part,
        "counted": [{"group": group, "decision": decision} for group, decision in counted.items()],
        "decision": book.decision.statement.raw if book.decision is not None else None,
    }


async def reduce_slice(exchange: Exchange, decision: Decision) -> dict[int, Reduced]:
    """Our group's means of the parts that are ours to reduce; notes who was shortened, and what we owe."""
    book = exchange.book
    start, end = book.own_slice
    parts = book.seats.parts_of(book.own_part)
    reduced = await off_loop(
        4 * (end - start) * len(decision.weights),
        reduce_parts,
        book.share_values,
        decision.weights,
        exchange.compression,
        [(book.bounds[part][0] - start, book.bounds[part][1] - start) for part in parts],
        decision.clips,
        exchange.manifest.averaging.robust,
        exchange.own_id,
    )
    exchange.shortened = reduced[0].shortened
    for part, entry in zip(parts, reduced, strict=True):
        exchange.owe(part, entry.owed)
    return dict(zip(parts, reduced, strict=True))


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
    whole = [(0, len(next(iter(shares.values()))))]
    return reduce_parts(shares, weights, compression, whole, clips or {}, robust, own_id)[0]


def reduce_parts(
    shares: Mapping[str, npt.NDArray[np.float32]],
    weights: Mapping[str, float],
    compression: str,
    ranges: Sequence[tuple[int, int]],
    clips: Mapping[str, float],
    robust: Robust,
    own_id: str,
) -> list[Reduced]:
    """`reduce_part` of several parts that lie side by side, each encoded by itself."""
    mean, shortened = robust_mean(shares, weights, clips, robust)
    factor = owed_factor(own_share(weights, own_id, robust), len(weights)) if own_id in weights else None
    return [encode_mean(mean[begin:end], compression, owed=factor, shortened=shortened) for begin, end in ranges]


def owed_factor(share: float, accepted: int) -> np.float32:
    """What encoding loses of a mean in units of an update that has this share of it, of so many accepted ones."""
    return np.float32(min(1.0 / share, OWED_AT_MOST * accepted))


def encode_mean(
    mean: npt.NDArray[np.float32],
    compression: str,
    *,
    owed: np.float32 | None,
    shortened: Mapping[str, float] | None = None,
) -> Reduced:
    """A mean as it goes on the wire; what encoding lost of it is kept ``owed`` times, or not at all."""
    data = encode(mean, compression)
    lost: npt.NDArray[np.float32] | None = None
    if owed is not None and not is_lossless(compression):
        lost = mean - decode(data, len(mean), compression)
        lost *= owed
    kept = lost if lost is not None and lost.any() else None
    return Reduced(data, hashlib.sha256(data).digest(), kept, dict(shortened or {}))
