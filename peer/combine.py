"""Combine: the means of several groups become one, part by part (docs/protocol.md §6, decision 10).

Who reduces a slice of the vector in its group sends each part of it to the one member of the list that owns the part.
The owner adds the groups' means by their weights and sends one encoding back the same way: to its own group, and to one
member of each other group, who passes the same bytes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from blockswarm.peer.allreduce import Reduced, encode_mean, open_part, owed_factor, reduce_slice, result_body
from blockswarm.peer.book import EntryRefused
from blockswarm.peer.exchange import Exchange, off_loop
from blockswarm.swarm.policy.robust import own_share, robust_mean
from blockswarm.swarm.statements import Decision


async def combine(exchange: Exchange) -> None:
    """Give our group's means to the owners of the parts, and make the swarm's mean of our own part."""
    book, times = exchange.book, exchange.times
    exchange.require_before(times.combine_end, "combining")
    decision = book.decision
    if decision is not None and book.own_part in decision.parts:
        await _send_means(exchange, decision)
    begin, end = book.bounds[book.own_part]
    if end == begin:
        return
    await book.wait(lambda: book.all_sums_in, exchange.left(times.combine_end))
    if not book.sums:
        return
    decisions = {group: book.decisions[group] for group in sorted(book.sums)}
    weights = {group: decision.weight for group, decision in decisions.items()}
    size = 4 * (end - begin) * len(weights)
    owed = _owed(exchange, decisions)
    combined = await off_loop(size, combine_part, book.sums, weights, exchange.compression, owed)
    exchange.require_before(times.gather_end, "the combined part")
    exchange.owe(book.own_part, combined.owed)
    counted = {group: decision.statement.hash for group, decision in decisions.items()}
    book.add_result(book.own_part, combined.data, combined.digest, counted)
    members = book.require_members().members
    others = [members[book.seats.reducer(group, book.own_part)] for group in range(book.seats.count)]
    exchange.broadcast(
        dict.fromkeys((*others, *book.group())),
        "round.result",
        result_body(exchange, book.own_part, counted),
        until=times.gather_end,
        blob=combined.data,
        values=end - begin,
    )


def _owed(exchange: Exchange, decisions: Mapping[int, Decision]) -> np.float32 | None:
    """How many times what encoding loses of the combined part is ours to bring in again; None if we are not in it."""
    own = decisions.get(exchange.book.own_group)
    if own is None or exchange.own_id not in own.weights:
        return None
    share = own_share(own.weights, exchange.own_id, exchange.manifest.averaging.robust)
    share *= own.weight / sum(decision.weight for decision in decisions.values())
    return owed_factor(share, sum(len(decision.weights) for decision in decisions.values()))


async def _send_means(exchange: Exchange, decision: Decision) -> None:
    """Reduce our slice for our group, and send each part of it to its owner."""
    book = exchange.book
    members = book.require_members()
    reduced = await reduce_slice(exchange, decision)
    exchange.require_before(exchange.times.combine_end, "the group's mean")
    for part, mean in reduced.items():
        begin, end = book.bounds[part]
        if part == book.own_part:
            values, norm2 = await off_loop(4 * (end - begin), open_part, mean.data, end - begin, exchange.compression)
            try:
                book.add_sum(book.own_group, values, norm2)
            except EntryRefused:  # noted in the book, like another's
                continue
        else:
            exchange.send(
                exchange.call(
                    members.members[part],
                    "round.sum",
                    {
                        "subject": book.subject,
                        "round": book.round,
                        "part": part,
                        "decision": decision.statement.raw,
                    },
                    until=exchange.times.combine_end,
                    blob=mean.data,
                    values=end - begin,
                )
            )


def combine_part(
    sums: Mapping[int, npt.NDArray[np.float32]],
    weights: Mapping[int, float],
    compression: str,
    owed: np.float32 | None,
) -> Reduced:
    """The mean of the groups' means by their weights, as it goes on the wire.

    Parameters
    ----------
    sums : mapping
        Group → its mean of the part as it came, float32 ``[n]``.
    weights : mapping
        Group → its weight; added in this order.
    compression : str
        How the result is encoded.
    owed : float32 or None
        How many times what encoding loses of it is ours to bring in again.
    """
    shares = {str(group): sums[group] for group in weights}
    mean, _ = robust_mean(shares, {str(group): weight for group, weight in weights.items()}, {}, "none")
    return encode_mean(mean, compression, owed=owed)


async def gather_from_groups(exchange: Exchange) -> None:
    """Collect the combined parts until all are in or the phase ends, and pass on to our group what is ours to pass."""
    book, times = exchange.book, exchange.times
    exchange.require_before(times.gather_end, "gathering")
    ours = {part for part in book.seats.parts_of(book.own_part) if book.seats.group_of[part] != book.own_group}

    def to_pass_on() -> set[int]:
        return ours & book.results.keys()

    while True:
        for part in sorted(to_pass_on()):
            ours.discard(part)
            begin, end = book.bounds[part]
            exchange.broadcast(
                book.group(),
                "round.result",
                result_body(exchange, part, book.result_groups[part]),
                until=times.gather_end,
                blob=book.results[part],
                values=end - begin,
            )
        if book.all_results_in or exchange.left(times.gather_end) <= 0:
            return
        await book.wait(lambda: book.all_results_in or bool(to_pass_on()), exchange.left(times.gather_end))
