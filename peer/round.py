"""One round of one subject, from meeting to commit: the walk of one update (ARCHITECTURE)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockswarm.peer.allreduce import agree, gather, scatter, verdict_of
from blockswarm.peer.book import EntryRefused
from blockswarm.peer.combine import combine, gather_from_groups
from blockswarm.peer.commit import commit
from blockswarm.peer.exchange import Exchange, RoundFailed, off_loop
from blockswarm.peer.heads import Head
from blockswarm.peer.meeting import meet
from blockswarm.peer.merging import MergeShare, account, plan_share
from blockswarm.peer.problems import problems_of
from blockswarm.peer.states import State
from blockswarm.swarm.policy.contributing import age_of
from blockswarm.swarm.policy.phases import with_combining
from blockswarm.swarm.statements import Decision

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
    contributed: dict[str, int]
    """Contributors whose updates are in it, and how many rounds old each is; they are no members."""
    guests: list[str]
    """All contributors of the list."""
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
    merged: MergeShare | None
    """What went into the update of a lost line's work."""
    ahead: list[Head]
    """Peers whose states may win over ours."""
    problems: dict[str, str]
    """Other peers, and what went wrong when we called them, or was wrong with what they sent."""
    kept_out: dict[str, int]
    """Peers that take no part for a time, because their updates had to be refused, and until which round."""
    bytes_sent: int
    bytes_saved: int
    """Bytes that encoding saved against sending float32."""
    bytes_received: int
    upload_seconds: float
    """Measured time to send one whole encoded update; 0 when nothing was sent."""
    phases_ms: dict[str, float] = field(default_factory=dict)

    @property
    def lone(self) -> bool:
        """Whether this peer committed the round alone."""
        return self.state is not None and len(self.members) == 1


async def run_round(exchange: Exchange) -> RoundResult:
    """Take part in one round; always returns within the round's close plus the time to ask for a certificate."""
    state: State | None = None
    failure = ""
    seen = np.empty(0, dtype=np.float32)
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
        await _take_of_merge(exchange)
        groups = exchange.book.seats.count
        exchange.times = with_combining(exchange.times, groups)
        phase("scatter")
        seen = await scatter(exchange)
        phase("decide")
        await agree(exchange)
        if groups > 1:
            phase("combine")
            await combine(exchange)
        phase("gather")
        await (gather(exchange) if groups == 1 else gather_from_groups(exchange))
        phase("commit")
        state = await commit(exchange)
    except (RoundFailed, EntryRefused) as error:  # the latter: our own step met a book that had moved on
        failure = str(error)
    finally:
        phase("")
        exchange.book.drop_terms()
    if (decision := exchange.book.decision) is not None:
        faults = verdict_of(exchange).rejected  # a leader's word alone keeps nobody out
        refused = {
            _culprit(exchange, peer_id, faults[peer_id]): faults[peer_id]
            for peer_id in decision.rejected
            if peer_id in faults
        }
        exchange.standing.note(exchange.times.round, decision.weights, refused)
    sent = await off_loop(exchange.delta.nbytes, _sent, exchange, state, seen)
    if exchange.merged is not None:
        sent = await off_loop(exchange.delta.nbytes, _settle_merge, exchange, exchange.merged, sent, state)
    return _result(exchange, state, failure, sent)


async def _take_of_merge(exchange: Exchange) -> None:
    """Add to the update what this round is to bring in of a lost line, now that the list says how much it counts."""
    merge = exchange.merge
    if merge is None:
        return
    share = await off_loop(exchange.delta.nbytes, plan_share, exchange, merge)
    if share is None:
        return
    merge.reserve(share.amount)
    if exchange.note_merge is not None and not await exchange.note_merge():
        merge.resolve(0.0)
        exchange.problems[exchange.own_id] = "nothing is merged: the state folder cannot be written"
        return
    exchange.merged = share
    exchange.delta = share.trained + share.addition


def _settle_merge(
    exchange: Exchange, share: MergeShare, sent: npt.NDArray[np.float32] | None, state: State | None
) -> npt.NDArray[np.float32] | None:
    """Account for what went in, and go on with the update as it was trained."""
    candidate = exchange.book.candidate
    sent = account(exchange, share, sent, state or candidate)
    exchange.delta = share.trained
    if state is None and candidate is not None:
        share.merge.wait_for(candidate.digest, share.merged)
    else:
        share.merge.resolve(share.merged)
    return sent


def _culprit(exchange: Exchange, peer_id: str, reason: str) -> str:
    """Whose doing a refusal is: of a contributor's update that came broken, its sponsor's, who had to look first."""
    return peer_id if reason.startswith("norm ") else exchange.book.sponsor(peer_id)


def _sent(exchange: Exchange, state: State | None, seen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """See `RoundResult.sent`; ``seen`` is our update as the reducers decoded it."""
    book = exchange.book
    decision, outcome = book.decision, book.outcome
    voted = state or book.candidate
    if voted is None or outcome is None or decision is None or exchange.own_id not in decision.weights:
        return None
    parts = [part for part, averaged in outcome.parts.items() if book.own_group in averaged.groups]
    if not parts:
        return None
    sent = np.zeros_like(exchange.delta)
    for part in parts:
        begin, end = book.bounds[part]
        sent[begin:end] = seen[begin:end]
        if part in exchange.owed:
            sent[begin:end] -= exchange.owed[part]
    return sent


def _counted(exchange: Exchange) -> list[Decision]:
    """The decisions that count, as far as they are known here: those in the outcome, or ours while there is none."""
    book = exchange.book
    if book.outcome is None:
        return [book.decision] if book.decision is not None else []
    known = ((book.decisions.get(group), counted.decision) for group, counted in book.outcome.counted.items())
    return [decision for decision, digest in known if decision is not None and decision.statement.hash == digest]


def _left_out(exchange: Exchange) -> dict[str, str]:
    """Members of groups that are not in the outcome."""
    book = exchange.book
    if book.outcome is None:
        return {}
    groups = set(range(book.seats.count)) - set(book.outcome.counted)
    return {peer_id: "its group is left out" for group in groups for peer_id in book.group(group)}


def _result(exchange: Exchange, state: State | None, failure: str, sent: npt.NDArray[np.float32] | None) -> RoundResult:
    book = exchange.book
    decisions = _counted(exchange)
    members = list(book.members.members) if book.members else []
    weighed = [peer_id for decision in decisions for peer_id in decision.weights]
    accepted = [peer_id for peer_id in weighed if peer_id not in book.guests]
    rejected = {peer_id: reason for decision in decisions for peer_id, reason in decision.rejected.items()}
    rejected |= _left_out(exchange)
    for peer_id, report in book.shares.items():
        if report.problem and peer_id not in weighed:
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
        contributed={
            peer_id: age_of(guest.round, guest.base_round)
            for peer_id, guest in book.guests.items()
            if peer_id in weighed
        },
        guests=list(book.guests),
        clipped=exchange.shortened | {peer: clip for decision in decisions for peer, clip in decision.clips.items()},
        state=state,
        candidate=book.candidate if state is None else None,
        failure=failure,
        sent=sent,
        merged=exchange.merged,
        ahead=[*exchange.ahead, *exchange.apart],
        problems=problems_of(exchange),
        kept_out=exchange.standing.out(book.round + 1),
        bytes_sent=exchange.bytes_sent,
        bytes_saved=exchange.bytes_saved,
        bytes_received=exchange.bytes_received + book.bytes_received,
        upload_seconds=exchange.upload_seconds,
        phases_ms=dict(exchange.phase_ms),
    )
