"""One round of one subject, from meeting to commit: the walk of one update (ARCHITECTURE)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockswarm.peer.allreduce import agree, gather, scatter, verdict_of
from blockswarm.peer.book import EntryRefused
from blockswarm.peer.commit import commit
from blockswarm.peer.exchange import Exchange, RoundFailed, off_loop
from blockswarm.peer.heads import Head
from blockswarm.peer.meeting import meet
from blockswarm.peer.states import State

log = logging.getLogger(__name__)


@dataclass
class RoundResult:
    """What came of a round: the new state, if any, and the figures of the report."""

    subject: int
    round: int
    parent: bytes
    met: list[str]
    """Replicas that took part from our state, ourselves included."""
    members: list[str]
    accepted: list[str]
    rejected: dict[str, str]
    clipped: dict[str, float]
    """Accepted members whose updates were shortened, and to which share; from centered clipping, of our part alone."""
    state: State | None
    """The certified new state; ``None`` when the round did not commit here."""
    candidate: State | None
    """The state this peer voted for without seeing a certificate; others may have one."""
    failure: str
    """Why the round did not commit; empty when it did."""
    sent: npt.NDArray[np.float32] | None
    """What the new state or the candidate contains of our update, zero in parts left out; ``None`` if not accepted.

    Where we reduced, what the encoding lost of everybody's mean is taken off it too, so that it comes back as ours.
    What a robust mean cut away of our update counts as contained: it is dropped, not carried.
    """
    ahead: list[Head]
    problems: dict[str, str]
    kept_out: dict[str, int]
    """Peers that take no part for a time, because their updates had to be refused, and until which round."""
    bytes_sent: int
    bytes_saved: int
    """Bytes that encoding saved against sending float32."""
    bytes_received: int
    phases_ms: dict[str, float] = field(default_factory=dict)

    @property
    def lone(self) -> bool:
        """Whether this peer committed the round alone."""
        return self.state is not None and len(self.members) == 1


async def run_round(exchange: Exchange) -> RoundResult:
    """Take part in one round; always returns within the round's close plus the time to ask for a certificate."""
    state: State | None = None
    failure = ""
    own_parts: dict[int, npt.NDArray[np.float32]] = {}
    phase_begin = exchange.clock.now()

    def phase(name: str) -> None:
        nonlocal phase_begin
        now = exchange.clock.now()
        if exchange.phase_ms:
            last = next(reversed(exchange.phase_ms))
            exchange.phase_ms[last] = round((now - phase_begin) * 1000, 1)
        phase_begin = now
        if name:
            exchange.phase_ms[name] = 0.0
            exchange.on_phase(name)

    try:
        phase("meet")
        await meet(exchange)
        phase("scatter")
        own_parts = await scatter(exchange)
        phase("decide")
        await agree(exchange)
        phase("gather")
        await gather(exchange)
        phase("commit")
        state = await commit(exchange)
    except RoundFailed as error:
        failure = str(error)
    except EntryRefused as error:  # our own step met a book that had moved on
        failure = str(error)
    finally:
        phase("")
    if (decision := exchange.book.decision) is not None:
        faults = verdict_of(exchange).rejected  # a leader's word alone keeps nobody out
        refused = {peer_id: faults[peer_id] for peer_id in decision.rejected if peer_id in faults}
        exchange.standing.note(exchange.times.round, decision.weights, refused)
    sent = await off_loop(exchange.delta.nbytes, _sent, exchange, state, own_parts)
    return _result(exchange, state, failure, sent)


def _sent(
    exchange: Exchange, state: State | None, own_parts: dict[int, npt.NDArray[np.float32]]
) -> npt.NDArray[np.float32] | None:
    """See `RoundResult.sent`."""
    book = exchange.book
    decision, outcome = book.decision, book.outcome
    voted = state or book.candidate
    if voted is None or outcome is None or decision is None or exchange.own_id not in decision.weights:
        return None
    sent = np.zeros_like(exchange.delta)
    for part in outcome.parts:
        begin, end = book.bounds[part]
        sent[begin:end] = own_parts[part]
        if part == book.own_part and exchange.owed is not None:
            sent[begin:end] -= exchange.owed
    return sent


def _result(exchange: Exchange, state: State | None, failure: str, sent: npt.NDArray[np.float32] | None) -> RoundResult:
    book = exchange.book
    decision = book.decision
    members = list(book.members.members) if book.members else []
    accepted = list(decision.weights) if decision else []
    rejected = dict(decision.rejected) if decision else {}
    for peer_id, report in book.shares.items():
        if report.problem and peer_id not in accepted:
            rejected.setdefault(peer_id, report.problem)
    rejected |= book.bad_means
    return RoundResult(
        subject=book.subject,
        round=book.round,
        parent=exchange.parent.digest,
        met=[peer_id for peer_id, entry in book.present.items() if entry.parent == exchange.parent.digest],
        members=members,
        accepted=accepted,
        rejected=rejected,
        clipped=exchange.shortened | (decision.clips if decision else {}),
        state=state,
        candidate=book.candidate if state is None else None,
        failure=failure,
        sent=sent,
        ahead=list(exchange.ahead),
        problems=dict(exchange.problems),
        kept_out=exchange.standing.out(book.round + 1),
        bytes_sent=exchange.bytes_sent,
        bytes_saved=exchange.bytes_saved,
        bytes_received=exchange.bytes_received + book.bytes_received,
        phases_ms=dict(exchange.phase_ms),
    )
