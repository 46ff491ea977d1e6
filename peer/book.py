"""The book of one round of one subject: everything received so far, each entry checked before it is written.

The book does no I/O and knows no clock. The round's driver waits on it; the message handlers write into it. One book
exists per (subject, round), made by whichever comes first: our own driver or an early message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockswarm.peer.evidence import EntryRefused, check_decision, check_outcome, mean_problem
from blockswarm.peer.roll import Roll
from blockswarm.peer.states import State
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.policy.acceptance import PartReport, quorum
from blockswarm.swarm.statements import Certificate, Decision, MemberList, Outcome, Vote

__all__ = ["EntryRefused", "RoundBook"]


@dataclass
class RoundBook(Roll):
    """See the module's docstring. Fields are read freely and written only through the methods."""

    growth: float = 1.0
    """How many times longer than its longest term, in squared norm, a mean can be as it is made and encoded."""

    decisions: dict[int, Decision] = field(default_factory=dict)
    """Of every group, by its number."""
    shares: dict[str, PartReport] = field(default_factory=dict)
    """What came from each sender of what I reduce in my group."""
    share_values: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    reports: dict[str, dict[str, PartReport]] = field(default_factory=dict)
    sums: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    """The groups' means of my own part, by group, as they were sent to me."""
    results: dict[int, bytes] = field(default_factory=dict)
    """Averaged parts, encoded, by list position."""
    result_hashes: dict[int, bytes] = field(default_factory=dict)
    result_groups: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Of each averaged part: the groups that are in it, and the hashes of their decisions."""
    bad_means: dict[str, str] = field(default_factory=dict)
    """Members who sent what cannot be a mean of the accepted updates, and why."""
    outcome: Outcome | None = None
    candidate: State | None = None
    """The state this peer has voted for."""
    votes: dict[str, Vote] = field(default_factory=dict)
    certificate: Certificate | None = None
    bytes_received: int = 0
    """Bytes of parts and averages that others have sent here."""

    def accept_list(self, members: MemberList, guests: Iterable[Contribution] = ()) -> bool:
        """As `Roll.accept_list`. Where a contributor of our group cannot be taken, that is what we report of it as a
        reducer: it costs nobody the round.
        """
        new = super().accept_list(members, guests)
        for peer_id in self.senders()[len(self.group()) :] if new else ():
            if problem := self.guest_problem(self.guests[peer_id]):
                self.refuse_share(peer_id, problem)
        return new

    # -- scatter ---------------------------------------------------------------------------------------------------

    def check_share(self, sender: str, values: int, size: int, expected: int, *, of: str | None = None) -> None:
        """Check a sender's part of the update before its bytes are read; a bad one is written down as rejected.

        Parameters
        ----------
        sender : str
            The peer on the other end.
        values : int
            Length of the whole vector, as the sender sees it.
        size, expected : int
            Bytes announced, and bytes the part must have.
        of : str, optional
            The contributor that the update is of, if it is not the sender's own.
        """
        if sender not in self.group():
            raise EntryRefused("not-listed", "the sender is not in our group")
        if of is not None:
            if of not in self.guests or self.sponsor(of) != sender:
                raise EntryRefused("not-listed", "the sender brings in no such contributor")
            sender = of
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
        return self.members is not None and set(self.senders()) <= set(self.shares)

    # -- decide ----------------------------------------------------------------------------------------------------

    def reducers(self) -> list[int]:
        """List positions of the members of our group that reduce something."""
        return [index for index in self.seats.groups[self.own_group] if self.seats.parts_of(index)]

    def add_report(self, reducer: str, report: Mapping[str, PartReport]) -> None:
        """A reducer's word on every sender of our group."""
        if reducer not in self.group():
            raise EntryRefused("not-listed", "the reducer is not in our group")
        if not set(report) <= set(self.senders()):
            raise EntryRefused("not-listed", "the report speaks of peers outside our group")
        if self.reports.setdefault(reducer, dict(report)) != report:
            raise EntryRefused("repeated", "the reducer has reported otherwise already")
        self.notify()

    @property
    def all_reports_in(self) -> bool:
        """Whether every reducer of our group has reported."""
        if self.members is None:
            return False
        return all(self.members.members[index] in self.reports for index in self.reducers())

    @property
    def decision(self) -> Decision | None:
        """Our own group's decision."""
        return self.decisions.get(self.own_group) if self.members is not None else None

    def accept_decision(self, decision: Decision) -> int:
        """Take a group's first decision by its leader or the next in order, and say which group's it is.

        One of our own group must not be contradicted by our own evidence.
        """
        members = self.require_members()
        group = check_decision(members, self.seats, decision, self._guest_weights())
        if (known := self.decisions.get(group)) is not None:
            if known.statement.raw == decision.statement.raw:
                return group
            raise EntryRefused("decided", f"round {self.round} has a decision of this group already")
        if group == self.own_group:
            counted = self.outcome.counted.get(group) if self.outcome else None
            if counted is not None and counted.decision != decision.statement.hash:
                raise EntryRefused("other-decision", "the outcome builds on another decision")
            if self.own_part in decision.parts:  # else our slice is left out, and what we saw of it does not matter
                for sender in decision.weights:
                    if problem := self.shares.get(sender, PartReport(0.0, "not here")).problem:
                        raise EntryRefused(
                            "contradiction", f"the decision accepts {sender}, whose part here is {problem}"
                        )
        self.decisions[group] = decision
        self.notify()
        return group

    def _guest_weights(self) -> dict[str, float]:
        """What each contributor may weigh at most."""
        return {peer_id: guest.samples * self.discounts[peer_id] for peer_id, guest in self.guests.items()}

    # -- combine and gather ----------------------------------------------------------------------------------------

    def check_sum(self, sender: str, part: int, decision: Decision) -> int:
        """Check a group's mean of our part before its bytes are read, and say which group's it is."""
        members = self.require_members().members
        if self._is_empty(self.own_part):
            raise EntryRefused("not-reducer", "this peer combines nothing")
        group = self.accept_decision(decision)
        if part != self.own_part or members[self.seats.reducer(group, part)] != sender:
            raise EntryRefused("not-reducer", "the part is not ours to combine, or not the sender's to reduce")
        if self.seats.reducer(group, part) not in decision.parts:
            raise EntryRefused("not-reported", "the decision does not count what the sender has reduced")
        if group in self.sums:
            raise EntryRefused("repeated", "this group's mean has arrived already")
        return group

    def add_sum(self, group: int, values: npt.NDArray[np.float32], norm2: float) -> None:
        """A group's mean of our part. One that cannot be a mean is kept out, and its sender named."""
        reducer = self.seats.reducer(group, self.own_part)
        self._refuse_bad_mean(reducer, norm2, self.decisions[group].parts.get(reducer), self.growth)
        self.sums.setdefault(group, values)
        self.notify()

    @property
    def all_sums_in(self) -> bool:
        """Whether every group's mean of our part has arrived, or will not come by its group's own decision."""
        for group in range(self.seats.count):
            decision = self.decisions.get(group)
            dead = decision is not None and self.seats.reducer(group, self.own_part) not in decision.parts
            if group not in self.sums and not dead:
                return False
        return True

    def check_result(self, sender: str, part: int, group: bytes, counted: Mapping[int, bytes]) -> None:
        """Check an averaged part before its bytes are read: it comes from its owner or by our group's reducer."""
        members = self.require_members()
        if group != members.group:
            raise EntryRefused("other-group", "the part is of another list")
        if not 0 <= part < len(members.members) or self._is_empty(part):
            raise EntryRefused("not-reducer", "nobody reduces this part")
        if sender not in (members.members[part], members.members[self.seats.reducer(self.own_group, part)]):
            raise EntryRefused("not-reducer", "the part is not the sender's to reduce")
        if not counted or not set(counted) <= set(range(self.seats.count)):
            raise EntryRefused("other-group", "the part names groups that are not in the list")
        known = self.decision.statement.hash if self.decision is not None else None
        unknown_is_fine = known is None and self.seats.count > 1
        if not unknown_is_fine and counted.get(self.own_group, known) != known:
            raise EntryRefused("other-decision", "the part was reduced under another decision")
        if part in self.results:
            raise EntryRefused("repeated", "this part has arrived already")

    def check_mean(self, part: int, norm2: float, groups: Iterable[int]) -> None:
        """Refuse an averaged part that cannot be a mean of the accepted updates, and note its owner.

        A weighted mean is never longer than the longest of its terms, and the decisions say how long these are.

        Parameters
        ----------
        part : int
            List position.
        norm2 : float
            Squared norm of the part as decoded here.
        groups : iterable of int
            Groups whose means are in it.
        """
        longest: float | None = 0.0
        for group in groups:
            decision = self.decisions.get(group)
            known = decision.parts.get(self.seats.reducer(group, part)) if decision is not None else None
            longest = None if known is None or longest is None else max(longest, known)
        growth = self.growth if self.seats.count == 1 else self.growth**2
        self._refuse_bad_mean(part, norm2, longest, growth)

    def _refuse_bad_mean(self, position: int, norm2: float, longest: float | None, growth: float) -> None:
        if problem := mean_problem(norm2, longest, growth):
            self.bad_means[self.require_members().members[position]] = problem
            raise EntryRefused("bad-mean", problem)

    def add_result(self, part: int, data: bytes, digest: bytes, counted: Mapping[int, bytes]) -> None:
        """An averaged part, encoded, with the hash computed here and the decisions that it was made under."""
        if part not in self.results:
            self.results[part] = data
            self.result_hashes[part] = digest
            self.result_groups[part] = dict(counted)
            self.notify()

    @property
    def all_results_in(self) -> bool:
        """Whether every part that can come has arrived."""
        if self.outcome is not None:
            return set(self.outcome.parts) <= set(self.results)
        if self.members is None or len(self.decisions) < self.seats.count:
            return False
        made = {part for decision in self.decisions.values() for part in decision.parts if not self._is_empty(part)}
        return made <= set(self.results)

    # -- commit ----------------------------------------------------------------------------------------------------

    def accept_outcome(self, outcome: Outcome) -> None:
        """Take the first outcome by the list's leader or the next in order that no decision here contradicts."""
        if self.outcome is not None:
            if self.outcome.statement.raw == outcome.statement.raw:
                return
            raise EntryRefused("proposed", f"round {self.round} has an outcome already")
        members = self.require_members()
        check_outcome(
            members, self.seats, outcome, self.decisions, own_group=self.own_group, guests=self._guest_weights()
        )
        self.outcome = outcome
        self.notify()

    def add_vote(self, vote: Vote) -> None:
        """A member's vote; the first of each member counts."""
        members = self.require_members()
        if vote.group != members.group or vote.statement.signer not in members.members:
            raise EntryRefused("not-listed", "the vote is not of this group")
        if self.votes.setdefault(vote.statement.signer, vote).ballot != vote.ballot:
            raise EntryRefused("repeated", "the member has voted for another state already")
        self.notify()

    def certify(self, own: Vote, run_digest: bytes) -> Certificate | None:
        """A certificate over our own ballot once enough members agree; ``None`` before."""
        members = self.require_members()
        agreeing = [vote for vote in self.votes.values() if vote.ballot == own.ballot]
        if self.certificate is None and len(agreeing) >= quorum(len(members.members)):
            self.certificate = Certificate.make(members, agreeing, run_digest)
        return self.certificate

    def drop_terms(self) -> None:
        """Let go of what the means were made of: as much as the whole update a round, and nobody can ask for it."""
        self.share_values.clear()
        self.sums.clear()

    def agreeing(self, own: Vote) -> int:
        """How many votes equal ``own``, itself included."""
        return sum(vote.ballot == own.ballot for vote in self.votes.values())
