"""The book of one round of one subject: everything received so far, each entry checked before it is written.

The book does no I/O and knows no clock. The round's driver waits on it; the message handlers write into it. One book
exists per (subject, round), made by whichever comes first: our own driver or an early message.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockswarm.errors import BlockswarmError
from blockswarm.peer.states import State
from blockswarm.swarm.policy.acceptance import PartReport, quorum
from blockswarm.swarm.policy.grouping import part_bounds
from blockswarm.swarm.statements import Certificate, Decision, MemberList, Outcome, Vote

MEAN_MARGIN = 1.05
"""On squared norms: what rounding can add to a mean, beside what the wire's encoding can."""

MAX_PRESENT = 1024
"""Peers that are heard in one round; the list takes at most the manifest's group size of them."""


class EntryRefused(BlockswarmError):
    """A message does not fit the round: ``code`` for the program, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Presence:
    """What a replica says when it meets: it takes part, from which state, with how much work."""

    parent: bytes
    samples: int
    reachable: bool


@dataclass
class RoundBook:
    """See the module's docstring. Fields are read freely and written only through the methods."""

    subject: int
    round: int
    own_id: str
    values: int
    """Length of the subject's vector."""
    growth: float = 1.0
    """How many times longer than its longest term, in squared norm, a mean can be as it is made and encoded."""

    present: dict[str, Presence] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """Peers that called us in this round, whatever they said: they are alive and should hear from us."""
    members: MemberList | None = None
    shares: dict[str, PartReport] = field(default_factory=dict)
    """What came of my part from each sender."""
    share_values: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    reports: dict[str, dict[str, PartReport]] = field(default_factory=dict)
    decision: Decision | None = None
    results: dict[int, bytes] = field(default_factory=dict)
    """Averaged parts, encoded, by list position."""
    result_hashes: dict[int, bytes] = field(default_factory=dict)
    bad_means: dict[str, str] = field(default_factory=dict)
    """Reducers whose averaged part cannot be the mean of what they reported, and why."""
    outcome: Outcome | None = None
    candidate: State | None = None
    """The state this peer has voted for."""
    votes: dict[str, Vote] = field(default_factory=dict)
    certificate: Certificate | None = None
    bytes_received: int = 0
    """Bytes of parts and averages that others have sent here."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Wake whoever waits on the book."""
        self._changed.set()

    async def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``condition`` holds, at most ``seconds``; whether it held."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not condition():
            left = end - loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return condition()
        return True

    # -- meet ------------------------------------------------------------------------------------------------------

    def note_heard(self, peer_id: str) -> None:
        """A peer has called: it is alive and should hear from us."""
        if len(self.heard) >= MAX_PRESENT and peer_id not in self.heard:
            raise EntryRefused("full", f"{MAX_PRESENT} replicas have called for round {self.round} already")
        self.heard.add(peer_id)
        self.notify()

    def note_presence(self, peer_id: str, presence: Presence) -> None:
        """A peer says that it takes part."""
        self.present[peer_id] = presence
        self.notify()

    def accept_list(self, members: MemberList) -> None:
        """Answer a leader's list: one per round, only if we take part, are in it and share its parent."""
        if self.members is not None:
            if self.members.group == members.group:
                return
            raise EntryRefused("listed", f"already in the list of {self.members.members[0]} for round {self.round}")
        if (members.subject, members.round) != (self.subject, self.round):
            raise EntryRefused("other-round", "the list is of another round")
        own = self.present.get(self.own_id)
        if own is None:
            raise EntryRefused("absent", "this peer takes no part in the round")
        if members.samples.get(self.own_id) != own.samples:
            raise EntryRefused("not-listed", "the list does not name this peer with the samples that it announced")
        if members.parent != own.parent:
            raise EntryRefused("parent", "the list builds on another state")
        if not any(members.reachable.values()):
            raise EntryRefused("unreachable", "no member of the list can reduce")
        self.members = members
        self.notify()

    # -- scatter ---------------------------------------------------------------------------------------------------

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Each member's part of the vector, in list order."""
        members = self.require_members()
        return part_bounds(self.values, [float(members.reachable[peer_id]) for peer_id in members.members])

    def require_members(self) -> MemberList:
        """The list; `EntryRefused` when there is none yet."""
        if self.members is None:
            raise EntryRefused("no-list", f"no list for round {self.round} yet")
        return self.members

    @property
    def own_part(self) -> int:
        """This peer's position in the list."""
        return self.require_members().members.index(self.own_id)

    @property
    def own_bounds(self) -> tuple[int, int]:
        """The range of values this peer reduces; empty when it reduces nothing."""
        return self.bounds[self.own_part]

    def check_share(self, sender: str, values: int, size: int, expected: int) -> None:
        """Check a sender's part of the update before its bytes are read; a bad one is written down as rejected.

        Parameters
        ----------
        sender : str
            The peer on the other end.
        values : int
            Length of the whole vector, as the sender sees it.
        size, expected : int
            Bytes announced, and bytes the part must have.
        """
        members = self.require_members()
        if sender not in members.members:
            raise EntryRefused("not-listed", "the sender is not in the list")
        if sender in self.shares:
            raise EntryRefused("repeated", "this part has arrived already")
        if values != self.values:
            self.refuse_share(sender, f"wrong shape: {values} values instead of {self.values}")
            raise EntryRefused("wrong-shape", f"the vector has {self.values} values, not {values}")
        if size != expected:
            self.refuse_share(sender, f"wrong length: {size} bytes instead of {expected}")
            raise EntryRefused("wrong-length", f"the part has {expected} bytes, not {size}")

    def refuse_share(self, sender: str, problem: str) -> None:
        """Write down why a sender's part cannot be used; the first word stands."""
        self.shares.setdefault(sender, PartReport(0.0, problem))
        self.notify()

    def add_share(self, sender: str, values: npt.NDArray[np.float32], norm2: float) -> None:
        """Write down a part that came whole. One that is not finite is kept out, by name."""
        if sender in self.shares:
            return
        if not math.isfinite(norm2):
            self.refuse_share(sender, "not finite")
            return
        self.share_values[sender] = values
        self.shares[sender] = PartReport(norm2)
        self.notify()

    @property
    def all_shares_in(self) -> bool:
        """Whether every listed sender's part has arrived or been refused."""
        return self.members is not None and set(self.members.members) <= set(self.shares)

    # -- decide ----------------------------------------------------------------------------------------------------

    def reducers(self) -> list[int]:
        """List positions of the members that reduce a part."""
        return [index for index, (begin, end) in enumerate(self.bounds) if end > begin]

    def add_report(self, reducer: str, report: Mapping[str, PartReport]) -> None:
        """A reducer's word on every sender."""
        members = self.require_members()
        if reducer not in members.members:
            raise EntryRefused("not-listed", "the reducer is not in the list")
        if not set(report) <= set(members.members):
            raise EntryRefused("not-listed", "the report speaks of peers outside the list")
        self.reports.setdefault(reducer, dict(report))
        self.notify()

    @property
    def all_reports_in(self) -> bool:
        """Whether every reducer has reported."""
        if self.members is None:
            return False
        return all(self.members.members[index] in self.reports for index in self.reducers())

    def accept_decision(self, decision: Decision) -> None:
        """Take the first decision by the leader or the next in order that our own evidence does not contradict."""
        members = self.require_members()
        if decision.group != members.group:
            raise EntryRefused("other-group", "the decision is of another group")
        if self.decision is not None:
            if self.decision.statement.raw == decision.statement.raw:
                return
            raise EntryRefused("decided", f"round {self.round} has a decision already")
        if decision.statement.signer not in members.members[:2]:
            raise EntryRefused("not-leader", "only the leader and the next in order may decide")
        reducers = set(self.reducers())
        if not set(decision.parts) <= reducers or not set(decision.weights) <= set(members.members):
            raise EntryRefused("not-listed", "the decision speaks of parts or peers outside the list")
        for sender, weight in decision.weights.items():
            if weight > members.samples[sender]:
                raise EntryRefused("contradiction", f"the decision counts more samples of {sender} than it has")
        if self.own_part in decision.parts:  # else our part is left out, and what we saw of it does not matter
            for sender in decision.weights:
                if sender not in self.share_values:
                    problem = self.shares[sender].problem if sender in self.shares else "not here"
                    raise EntryRefused("contradiction", f"the decision accepts {sender}, whose part here is {problem}")
        self.decision = decision
        self.notify()

    # -- gather ----------------------------------------------------------------------------------------------------

    def check_result(self, sender: str, part: int, group: bytes, decision: bytes) -> None:
        """Check an averaged part before its bytes are read."""
        members = self.require_members()
        if group != members.group:
            raise EntryRefused("other-group", "the part is of another group")
        if self.decision is None or self.decision.statement.raw != decision:
            raise EntryRefused("other-decision", "the part was reduced under another decision")
        if not 0 <= part < len(members.members) or members.members[part] != sender:
            raise EntryRefused("not-reducer", "the part is not the sender's to reduce")
        if part in self.results:
            raise EntryRefused("repeated", "this part has arrived already")

    def check_mean(self, part: int, norm2: float) -> None:
        """Refuse an averaged part that cannot be a mean of the accepted updates, and note its reducer.

        A weighted mean is never longer than the longest of its terms, and the reducer has told everyone their lengths.

        Parameters
        ----------
        part : int
            List position.
        norm2 : float
            Squared norm of the part as decoded here.
        """
        members, decision = self.require_members(), self.decision
        reducer = members.members[part]
        report = self.reports.get(reducer)
        problem = ""
        if not math.isfinite(norm2):
            problem = "sent a mean that is not finite"
        elif report is not None and decision is not None:
            longest = max((report[sender].norm2 for sender in decision.weights if sender in report), default=0.0)
            if norm2 > MEAN_MARGIN * self.growth * longest:
                problem = f"sent a mean of norm {norm2**0.5:.3g}, longer than any update in it ({longest**0.5:.3g})"
        if problem:
            self.bad_means[reducer] = problem
            raise EntryRefused("bad-mean", problem)

    def add_result(self, part: int, data: bytes, digest: bytes) -> None:
        """An averaged part, encoded, with the hash computed here."""
        if part not in self.results:
            self.results[part] = data
            self.result_hashes[part] = digest
            self.notify()

    @property
    def all_results_in(self) -> bool:
        """Whether every part of the decision has arrived."""
        return self.decision is not None and set(self.decision.parts) <= set(self.results)

    # -- commit ----------------------------------------------------------------------------------------------------

    def accept_outcome(self, outcome: Outcome) -> None:
        """Take the first outcome by the leader or the next in order that builds on our decision."""
        members = self.require_members()
        if self.outcome is not None:
            if self.outcome.statement.raw == outcome.statement.raw:
                return
            raise EntryRefused("proposed", f"round {self.round} has an outcome already")
        if outcome.group != members.group or outcome.statement.signer not in members.members[:2]:
            raise EntryRefused("not-leader", "only the group's leader and the next in order may propose an outcome")
        if self.decision is None or outcome.decision != self.decision.statement.hash:
            raise EntryRefused("other-decision", "the outcome builds on another decision")
        if not outcome.parts or not set(outcome.parts) <= set(self.decision.parts):
            raise EntryRefused("not-listed", "the outcome speaks of parts outside the decision")
        self.outcome = outcome
        self.notify()

    def add_vote(self, vote: Vote) -> None:
        """A member's vote; the first of each member counts."""
        members = self.require_members()
        if vote.group != members.group or vote.statement.signer not in members.members:
            raise EntryRefused("not-listed", "the vote is not of this group")
        self.votes.setdefault(vote.statement.signer, vote)
        self.notify()

    def certify(self, own: Vote, run_digest: bytes) -> Certificate | None:
        """A certificate over our own ballot once enough members agree; ``None`` before."""
        members = self.require_members()
        agreeing = [vote for vote in self.votes.values() if vote.ballot == own.ballot]
        if self.certificate is None and len(agreeing) >= quorum(len(members.members)):
            self.certificate = Certificate.make(members, agreeing, run_digest)
        return self.certificate

    def agreeing(self, own: Vote) -> int:
        """How many votes equal ``own``, itself included."""
        return sum(vote.ballot == own.ballot for vote in self.votes.values())
