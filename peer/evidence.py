"""Whether a signed statement fits the list of its round: pure checks, made before anything is written in a book."""

from __future__ import annotations

import math
from collections.abc import Mapping

from blockswarm.errors import BlockswarmError
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.statements import Decision, MemberList, Outcome

MEAN_MARGIN = 1.05
"""On squared norms: what rounding can add to a mean, beside what the wire's encoding can."""


class EntryRefused(BlockswarmError):
    """A message does not fit the round: ``code`` for the program, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_decision(
    members: MemberList, seats: Seats, decision: Decision, guests: Mapping[str, float] | None = None
) -> int:
    """The number of the group that a decision is about; `EntryRefused` when it is none that this list can have.

    ``guests`` says what each of the list's contributors may weigh at most.
    """
    if decision.group != members.group:
        raise EntryRefused("other-group", "the decision is of another list")
    signer = decision.statement.signer
    position = members.members.index(signer) if signer in members.members else None
    group = None if position is None else seats.group_of[position]
    if group is None or position not in seats.groups[group][:2]:
        raise EntryRefused("not-leader", "only a group's leader and the next in order may decide")
    positions = seats.groups[group]
    reducers = {position for position in positions if seats.parts_of(position)}
    hosted = {peer_id for peer_id, (host, _) in members.guests.items() if host in positions}
    listed = {members.members[position] for position in positions} | hosted
    if not set(decision.parts) <= reducers or not set(decision.weights) <= listed:
        raise EntryRefused("not-listed", "the decision speaks of parts or peers outside its group")
    if not set(decision.weights) - hosted:
        raise EntryRefused("contradiction", "the decision accepts no member")
    most = members.samples | dict(guests or {})
    for sender, weight in decision.weights.items():
        if weight > most[sender]:
            raise EntryRefused("contradiction", f"the decision counts more samples of {sender} than it has")
    return group


def check_outcome(
    members: MemberList,
    seats: Seats,
    outcome: Outcome,
    decisions: Mapping[int, Decision],
    *,
    own_group: int,
    guests: Mapping[str, float] | None = None,
) -> None:
    """Raise `EntryRefused` for an outcome that this list cannot have, or that contradicts a decision known here.

    Parameters
    ----------
    members, seats
        The list.
    outcome : Outcome
        What was proposed.
    decisions : mapping
        Decisions that have come here, by group.
    own_group : int
        With one group, only who has its decision can tell whether the outcome builds on it.
    guests : mapping, optional
        What each of the list's contributors may weigh at most.
    """
    if outcome.group != members.group or outcome.statement.signer not in members.members[:2]:
        raise EntryRefused("not-leader", "only the list's leader and the next in order may propose an outcome")
    if not outcome.parts or not set(outcome.counted) <= set(range(seats.count)):
        raise EntryRefused("not-listed", "the outcome has no parts, or groups outside the list")
    if seats.count == 1 and not decisions:
        raise EntryRefused("other-decision", "the outcome builds on a decision that is not here")
    most = dict.fromkeys(range(seats.count), 0.0)
    for position, samples in enumerate(members.samples.values()):
        most[seats.group_of[position]] += samples
    for peer_id, (host, _) in members.guests.items():
        most[seats.group_of[host]] += (guests or {}).get(peer_id, 0.0)
    for group, counted in outcome.counted.items():
        if counted.weight > most[group]:
            raise EntryRefused("contradiction", "the outcome counts more samples of a group than its members have")
        decision = decisions.get(group)
        if decision is None:
            continue
        if decision.statement.hash != counted.decision:
            # Of a foreign group it does not matter under which of its decisions it counts; of ours it does.
            if group == own_group:
                raise EntryRefused("other-decision", "the outcome builds on another decision")
        elif counted.weight != decision.weight:
            raise EntryRefused("contradiction", "the outcome gives a group another weight than its decision")
    for part, averaged in outcome.parts.items():
        if part >= len(seats.reachable) or seats.bounds[part][0] == seats.bounds[part][1]:
            raise EntryRefused("not-listed", "the outcome speaks of parts that nobody reduces")
        for group in averaged.groups:
            decision = decisions.get(group)
            same = decision is not None and decision.statement.hash == outcome.counted[group].decision
            if same and decision is not None and seats.reducer(group, part) not in decision.parts:
                raise EntryRefused("not-listed", "the outcome speaks of parts outside the decision")


def mean_problem(norm2: float, longest: float | None, growth: float) -> str:
    """Why a vector of this squared norm can be no mean of the updates it is said to be of; empty when it can.

    Parameters
    ----------
    norm2 : float
        Squared norm as decoded here.
    longest : float or None
        Squared norm of the longest update in it; ``None`` when it is not known here.
    growth : float
        See `RoundBook.growth`.
    """
    if not math.isfinite(norm2):
        return "sent a mean that is not finite"
    if longest is not None and norm2 > MEAN_MARGIN * growth * longest:
        return f"sent a mean of norm {norm2**0.5:.3g}, longer than any update in it ({longest**0.5:.3g})"
    return ""
