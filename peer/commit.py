"""Commit: one outcome, one vote each, and a certificate of more than half of the list (docs/protocol.md §6)."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib

import numpy as np

from blockswarm.peer.allreduce import open_part
from blockswarm.peer.exchange import Exchange, RoundFailed, off_loop
from blockswarm.peer.outcome import learn_own_decision, settle_outcome
from blockswarm.peer.states import State
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.policy.acceptance import quorum
from blockswarm.swarm.policy.outer import outer_step
from blockswarm.swarm.statements import Certificate, Outcome, StatementError, Vote

FETCH_PATIENCE = 0.15
"""Share of the time left after which a missing part is asked of one more member."""

ASK_SECONDS = 1.5
"""How long after the close a voter without a certificate asks the others for theirs."""


async def commit(exchange: Exchange) -> State:
    """Agree on the outcome, apply it, vote, and return the certified new state.

    Raises
    ------
    RoundFailed
        When there is no certificate: the parent stays, and the work is carried into the next round.
    """
    book, times = exchange.book, exchange.times
    exchange.require_before(times.close, "committing")
    outcome = await settle_outcome(exchange)
    await _fetch_missing(exchange, outcome)
    await learn_own_decision(exchange, outcome)
    size = 4 * book.values
    candidate = await off_loop(size, apply_outcome, exchange, outcome)
    exchange.require_before(times.close, "the vote")
    vote = Vote.make(
        exchange.identity,
        exchange.manifest.digest,
        group=outcome.group,
        outcome=outcome.statement.hash,
        digest=candidate.digest,
        samples=candidate.samples,
    )
    book.candidate = candidate
    book.add_vote(vote)
    members = book.require_members()
    exchange.broadcast(
        members.members,
        "round.vote",
        {
            "subject": book.subject,
            "round": book.round,
            "vote": vote.statement.raw,
            # Where there are several groups it has as many parts as the list has members: who lacks it asks for it.
            "outcome": outcome.statement.raw if book.seats.count == 1 else None,
        },
        until=times.close,
    )
    needed = quorum(len(members.members))
    await book.wait(lambda: book.agreeing(vote) >= needed, exchange.left(times.close))
    certificate = book.certify(vote, exchange.manifest.digest)
    if certificate is None:
        certificate = await _ask_for_certificate(exchange, candidate.digest)
    if certificate is None:
        others = len(book.votes) - book.agreeing(vote)
        raise RoundFailed(
            f"{book.agreeing(vote)} of the {needed} votes needed" + (f", {others} for another state" if others else "")
        )
    return dataclasses.replace(candidate, certificate=certificate.raw)


async def _fetch_missing(exchange: Exchange, outcome: Outcome) -> None:
    """Get every part of the outcome that is not here, or differs from it, from those who hold it, by its hash."""
    book = exchange.book
    members = book.require_members().members

    def sources(part: int) -> list[str]:
        # With several groups: those who pass it on in the others, each group beginning with another one; then who
        # signed for it, who made it, and everybody.
        count, own = book.seats.count, book.own_group
        passed_on = [members[book.seats.reducer((own + step) % count, part)] for step in range(1, count)]
        everyone = [*passed_on, outcome.statement.signer, members[part], *members]
        return [peer_id for peer_id in dict.fromkeys(everyone) if peer_id != exchange.own_id]

    for part, averaged in outcome.parts.items():
        if book.result_hashes.get(part, averaged.digest) != averaged.digest:
            # Who made it has sent others other bytes; of our own part we know that it is the outcome that is wrong.
            culprit = outcome.statement.signer if part == book.own_part else members[part]
            book.note_refusal(culprit, f"part {part} as it sent it here is not the one in the outcome")
    await asyncio.gather(
        *(_fetch_part(exchange, part, averaged.digest, sources(part)) for part, averaged in outcome.parts.items())
    )


async def _fetch_part(exchange: Exchange, part: int, digest: bytes, sources: list[str]) -> None:
    """Ask one source, soon the next one as well, and so on: a source that has stopped must not cost us the vote."""
    book, close = exchange.book, exchange.times.close

    def here() -> bool:
        return book.result_hashes.get(part) == digest

    asked: list[asyncio.Task[None]] = []
    for source in sources:
        if here():
            return
        asked.append(exchange.send(_ask_for_part(exchange, source, part, digest)))
        await book.wait(lambda: here() or asked[-1].done(), FETCH_PATIENCE * exchange.left(close))
    await book.wait(lambda: here() or all(task.done() for task in asked), exchange.left(close))
    if not here():
        signer = exchange.book.outcome.statement.signer if exchange.book.outcome else "the leader"
        raise RoundFailed(f"part {part} of the outcome of {signer} could not be fetched from anyone")


async def _ask_for_part(exchange: Exchange, source: str, part: int, digest: bytes) -> None:
    book = exchange.book
    begin, end = book.bounds[part]
    size = encoded_size(end - begin, exchange.manifest.averaging.compression)
    reply = await exchange.call(
        source,
        "round.fetch",
        {"subject": book.subject, "round": book.round, "hash": digest},
        until=exchange.times.close,
        max_blob=size,
    )
    if reply is not None and len(reply.blob) == size:
        data = bytes(reply.blob)
        if await off_loop(size, _sha256, data) == digest:
            book.results[part], book.result_hashes[part] = data, digest
    book.notify()


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def apply_outcome(exchange: Exchange, outcome: Outcome) -> State:
    """The candidate: the parent plus the outer step along the decoded mean of every part that is in.

    Parts that were left out keep the parent's values and momentum; what was trained there is carried by those who
    trained it.

    Raises
    ------
    RoundFailed
        When the result is not finite; nobody should vote for that.
    """
    book = exchange.book
    settings, parent = exchange.manifest.averaging, exchange.parent
    values = parent.values.copy()
    velocity = None if parent.momentum is None else parent.momentum.copy()
    for part, averaged in outcome.parts.items():
        begin, end = book.bounds[part]
        step, norm2 = open_part(book.results[part], end - begin, exchange.compression)
        book.check_mean(part, norm2, averaged.groups)
        if velocity is not None:
            step, velocity[begin:end] = outer_step(
                step, velocity[begin:end], momentum=settings.outer_momentum, rate=settings.outer_rate
            )
        values[begin:end] += step
    if not np.isfinite(values).all() or not (velocity is None or np.isfinite(velocity).all()):
        raise RoundFailed("the average is not finite")
    # The weights: what a member claims beyond its weight is nobody's proof.
    samples = parent.samples + int(sum(counted.weight for _, counted in sorted(outcome.counted.items())))
    return State.make(book.subject, book.round, values, samples=samples, momentum=velocity)


async def _ask_for_certificate(exchange: Exchange, digest: bytes) -> Certificate | None:
    """Ask every member whether the round was certified after all; only our own candidate is of use here."""
    book = exchange.book
    until = exchange.clock.now() + ASK_SECONDS
    asked = exchange.broadcast(
        book.require_members().members,
        "round.certificate",
        {"subject": book.subject, "round": book.round},
        until=until,
    )
    for answer in asyncio.as_completed(asked):  # the first that has it is enough; others may have stopped
        reply = await answer
        if reply is None:
            continue
        try:
            certificate = Certificate.open(reply.body.get("certificate"), exchange.manifest.digest)
        except StatementError:
            continue
        if certificate.digest == digest and certificate.members.group == book.require_members().group:
            book.certificate = certificate
            return certificate
    return None
