"""Who did not do its part in a round, for the round's report: every failure has a name beside it."""

from __future__ import annotations

from collections.abc import Iterator

from blockswarm.peer.exchange import Exchange


def problems_of(exchange: Exchange) -> dict[str, str]:
    """Other peers, and all that was wrong with what they sent, did not send, or answered; one line each."""
    found: dict[str, list[str]] = {}
    for peer_id, problem in (*exchange.book.refusals.items(), *_missed(exchange), *exchange.problems.items()):
        if peer_id != exchange.own_id:
            found.setdefault(peer_id, []).append(problem)
    return {peer_id: "; ".join(problems) for peer_id, problems in found.items()}


def _missed(exchange: Exchange) -> Iterator[tuple[str, str]]:
    """What should have come by the end of the round, and did not: no call of ours needs to have failed for that."""
    book = exchange.book
    if book.members is None:
        return
    members, parent = book.members.members, exchange.parent.digest
    for peer_id in exchange.replicas:
        if peer_id not in members and peer_id not in exchange.problems and peer_id not in exchange.answered:
            yield peer_id, "did not answer the meeting"
    for peer_id, presence in book.present.items():
        if peer_id not in members and presence.parent != parent:
            yield peer_id, f"takes part from another state, {presence.parent.hex()[:8]}"
    decision, outcome = book.decision, book.outcome
    if decision is None:
        return
    leader = book.group()[0]
    if decision.statement.signer != leader:
        yield leader, "did not decide in time"
    silent = [position for position in book.reducers() if position not in decision.parts]
    yield from ((members[position], "did not report on its part in time") for position in silent)
    if outcome is None:
        return
    if outcome.statement.signer != members[0]:
        yield members[0], "did not propose the outcome in time"
    if book.seats.count == 1:
        late = set(decision.parts) - set(outcome.parts)
        yield from ((members[position], "did not bring its averaged part in time") for position in sorted(late))
