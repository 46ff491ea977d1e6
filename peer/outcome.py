"""The outcome of a round: which groups and which averaged parts are in (docs/protocol.md §6, *Commit*)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from blockswarm.peer.book import EntryRefused, RoundBook
from blockswarm.peer.exchange import Exchange, RoundFailed
from blockswarm.swarm.statements import (
    MAX_STATEMENT_BYTES,
    Averaged,
    Counted,
    Decision,
    Outcome,
    StatementError,
    open_statement,
)

TAKE_OVER = 0.35
"""Share of the commit phase after which the next in order proposes the outcome in the leader's place."""

LEARN_PATIENCE = 0.15
"""Share of the commit phase that who proposes gives others to tell it a decision that it lacks."""

ASKED_FOR_DECISION = 2
"""Owners of parts that are asked for the decision of one group at once."""

HEADS = 2
"""First members of each group who are told the outcome by its signer, and tell their group."""


async def settle_outcome(exchange: Exchange) -> Outcome:
    """The outcome to vote on: the leader's, or the next in order's when the leader is silent.

    Whom it has not reached, and who sees others vote for it, asks one of them for it.

    Raises
    ------
    RoundFailed
        When none came before the round closed.
    """
    book, times = exchange.book, exchange.times
    rank = book.own_part
    span = times.close - times.gather_end
    own_turn = times.gather_end + (0.0 if rank == 0 else TAKE_OVER) * span if rank < 2 else times.close
    asked: set[bytes] = set()

    def voted_for() -> dict[bytes, str]:
        return {vote.outcome: peer_id for peer_id, vote in book.votes.items() if vote.outcome not in asked}

    while book.outcome is None:
        for digest, voter in voted_for().items():
            asked.add(digest)
            exchange.send(_ask_for_outcome(exchange, voter, digest))
        ready = rank == 0 and book.all_results_in
        if rank < 2 and (ready or exchange.left(own_turn) <= 0):
            await _propose(exchange)
            break
        if exchange.left(times.close) <= 0:
            raise RoundFailed("no outcome was proposed before the round closed")
        await book.wait(
            lambda: book.outcome is not None or bool(voted_for()) or (rank == 0 and book.all_results_in),
            exchange.left(own_turn),
        )
    outcome = book.outcome
    if outcome is None:
        raise RoundFailed("no outcome could be proposed")
    group = book.group()
    if book.seats.count > 1 and outcome.statement.signer != exchange.own_id and exchange.own_id in group[:HEADS]:
        _tell(exchange, outcome, book.own_group, group)
    return outcome


def _tell(exchange: Exchange, outcome: Outcome, group: int, members: Sequence[str]) -> None:
    """Tell members of one group the outcome, and its decision, if it counts."""
    book = exchange.book
    decision = book.decisions.get(group) if group in outcome.counted else None
    body = {
        "subject": book.subject,
        "round": book.round,
        "outcome": outcome.statement.raw,
        "decision": decision.statement.raw if decision is not None else None,
    }
    exchange.broadcast(members, "round.outcome", body, until=exchange.times.close)


async def _propose(exchange: Exchange) -> None:
    """Sign which groups and parts are in, as far as their decisions are known here, and tell everyone."""
    book = exchange.book
    members = book.require_members()
    await _learn_decisions(exchange)
    parts = {
        part: Averaged(book.result_hashes[part], tuple(sorted(groups)))
        for part, groups in book.result_groups.items()
        if all(_known(book, group, digest, part) for group, digest in groups.items())
    }
    if not parts:
        raise RoundFailed("no averaged part arrived")
    if book.outcome is not None:  # it came while we were asking
        return
    numbers = {group for averaged in parts.values() for group in averaged.groups}
    outcome = Outcome.make(
        exchange.identity,
        exchange.manifest.digest,
        group=members.group,
        counted={
            group: Counted(decision.statement.hash, decision.weight)
            for group, decision in book.decisions.items()
            if group in numbers
        },
        parts=parts,
    )
    try:
        book.accept_outcome(outcome)
    except EntryRefused:  # the other one's outcome came first
        return
    for group in range(book.seats.count):
        told = book.group(group)
        _tell(exchange, outcome, group, told if group == book.own_group else told[:HEADS])


def _known(book: RoundBook, group: int, digest: bytes, part: int) -> bool:
    """Whether a group's mean in a part is one that its decision, as known here, counts."""
    decision = book.decisions.get(group)
    if decision is None or decision.statement.hash != digest:
        return False
    return book.seats.reducer(group, part) in decision.parts


async def _learn_decisions(exchange: Exchange) -> None:
    """Ask the owners of averaged parts for decisions of other groups that have not come here."""
    book = exchange.book
    members = book.require_members().members
    wanted: dict[int, list[tuple[str, bytes]]] = {}
    for part, groups in book.result_groups.items():
        for group, digest in groups.items():
            if group not in book.decisions and members[part] != exchange.own_id:
                wanted.setdefault(group, []).append((members[part], digest))
    if wanted:
        span = exchange.times.close - exchange.times.gather_end
        until = exchange.clock.now() + LEARN_PATIENCE * span
        asked = [
            exchange.send(_ask_for_decision(exchange, source, digest, until))
            for sources in wanted.values()
            for source, digest in dict.fromkeys(sources[:ASKED_FOR_DECISION])
        ]
        await asyncio.wait(asked, timeout=exchange.left(until))


async def learn_own_decision(exchange: Exchange, outcome: Outcome) -> None:
    """Whose group counts, but whose decision never came here, asks for it: it says whether our update is in."""
    book = exchange.book
    counted = outcome.counted.get(book.own_group)
    if counted is not None and book.decision is None and outcome.statement.signer != exchange.own_id:
        await _ask_for_decision(exchange, outcome.statement.signer, counted.decision, exchange.times.close)


async def _ask_for_decision(exchange: Exchange, source: str, digest: bytes, until: float) -> None:
    if (raw := await _ask(exchange, source, digest, until)) is None:
        return
    try:
        exchange.book.accept_decision(Decision.parse(open_statement("decision", exchange.manifest.digest, raw)))
    except (StatementError, EntryRefused) as error:
        exchange.problems[source] = str(error)


async def _ask_for_outcome(exchange: Exchange, source: str, digest: bytes) -> None:
    if (raw := await _ask(exchange, source, digest, exchange.times.close)) is None:
        return
    try:
        exchange.book.accept_outcome(Outcome.parse(open_statement("outcome", exchange.manifest.digest, raw)))
    except (StatementError, EntryRefused) as error:
        exchange.problems[source] = str(error)


async def _ask(exchange: Exchange, source: str, digest: bytes, until: float) -> bytes | None:
    """A statement by its hash, from one who has it; ``None`` when it did not come, or something else did."""
    body = {"subject": exchange.book.subject, "round": exchange.book.round, "hash": digest}
    reply = await exchange.call(source, "round.fetch", body, until=until, max_blob=MAX_STATEMENT_BYTES)
    raw = bytes(reply.blob) if reply is not None else b""
    return raw if hashlib.sha256(raw).digest() == digest else None
