"""The roll of one round of one subject: who is heard, who takes part, and who sits where in the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from blockswarm.peer.changes import Changes
from blockswarm.peer.evidence import EntryRefused
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.policy.parts import UNKNOWN, Bandwidth
from blockswarm.swarm.statements import MemberList

MAX_PRESENT = 1024
"""Peers that are heard in one round; a list takes at most `MAX_MEMBERS` of them."""


@dataclass(frozen=True)
class Presence:
    """What a replica says when it meets: it takes part, from which state, with how much work."""

    parent: bytes
    samples: int
    reachable: bool
    line: Bandwidth = UNKNOWN
    guests: tuple[Contribution, ...] = ()
    """Contributors whose updates it brings in beside its own."""


@dataclass
class Roll(Changes):
    """Written only through the methods, each of which checks what it is given; no I/O and no clock."""

    subject: int
    round: int
    own_id: str
    values: int
    """Length of the subject's vector."""
    group_size: int
    """Most members of a group, from the manifest."""
    guest_problem: Callable[[Contribution], str] = lambda guest: ""
    """Why a contributor's update cannot be taken, as far as it can be told here; empty when it can."""
    guest_discount: Callable[[Contribution], float] = lambda guest: 1.0
    """The share of its samples that it may weigh."""
    present: dict[str, Presence] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """Peers that called us in this round, whatever they said: they are alive and should hear from us."""
    members: MemberList | None = None
    guests: dict[str, Contribution] = field(default_factory=dict)
    """The list's contributors."""
    discounts: dict[str, float] = field(default_factory=dict)
    """Of each contributor, the share of its samples that it may weigh."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Peers that sent what had to be refused, and why; the first word of each."""
    seats: Seats = field(init=False)
    """Who does what in the list; set with it, like the next two."""
    own_part: int = field(init=False)
    """This peer's position in the list, and the number of its part."""
    own_group: int = field(init=False)

    def __post_init__(self) -> None:
        super().__init__()

    def note_heard(self, peer_id: str) -> None:
        """A peer has called: it is alive and should hear from us."""
        if len(self.heard) >= MAX_PRESENT and peer_id not in self.heard:
            raise EntryRefused("full", f"{MAX_PRESENT} replicas have called for round {self.round} already")
        self.heard.add(peer_id)
        self.notify()

    def note_refusal(self, peer_id: str, reason: str) -> bool:
        """Something of this peer was refused, for the round's report; whether it is the first time."""
        if peer_id in self.refusals or len(self.refusals) >= MAX_PRESENT:
            return False
        self.refusals[peer_id] = reason
        return True

    def note_presence(self, peer_id: str, presence: Presence) -> None:
        """A peer says that it takes part; its last word counts."""
        if self.present.get(peer_id, presence) != presence:
            self.note_refusal(peer_id, "takes part twice, with different updates")
        self.present[peer_id] = presence
        self.notify()

    def accept_list(self, members: MemberList, guests: Iterable[Contribution] = ()) -> bool:
        """Answer a leader's list: one per round, only if we take part, are in it and share its parent.

        ``guests`` are the list's contributions, their signatures checked. Returns whether the list is new to us.
        """
        if self.members is not None:
            if self.members.group == members.group:
                return False
            raise EntryRefused("listed", f"already in the list of {self.members.members[0]} for round {self.round}")
        if (members.subject, members.round) != (self.subject, self.round):
            raise EntryRefused("other-round", "the list is of another round")
        own = self.present.get(self.own_id)
        if own is None:
            raise EntryRefused("absent", "this peer takes no part in the round")
        if members.samples.get(self.own_id) != own.samples:
            raise EntryRefused("not-listed", "the list does not name this peer with the samples that it announced")
        if members.lines[self.own_id] != own.line:
            raise EntryRefused("not-listed", "the list does not name this peer with the line that it announced")
        if members.parent != own.parent:
            raise EntryRefused("parent", "the list builds on another state")
        if not any(members.reachable.values()):
            raise EntryRefused("unreachable", "no member of the list can reduce")
        own_guests = {guest.peer_id: guest for guest in guests}
        if own_guests.keys() != members.guests.keys():
            raise EntryRefused("contradiction", "the list's contributors have not signed for it")
        if any((guest.subject, guest.round) != (self.subject, self.round) for guest in own_guests.values()):
            raise EntryRefused("other-round", "the list has a contribution to another round")
        lines = tuple(members.lines.values())
        self.seats = Seats(self.values, tuple(members.reachable.values()), self.group_size, lines)
        self.own_part = members.members.index(self.own_id)
        self.own_group = self.seats.group_of[self.own_part]
        self.members, self.guests = members, own_guests
        self.discounts = {peer_id: self.guest_discount(guest) for peer_id, guest in own_guests.items()}
        self.notify()
        return True

    # -- seats -----------------------------------------------------------------------------------------------------

    def require_members(self) -> MemberList:
        """The list; `EntryRefused` when there is none yet."""
        if self.members is None:
            raise EntryRefused("no-list", f"no list for round {self.round} yet")
        return self.members

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Each member's part of the vector, in list order."""
        self.require_members()
        return self.seats.bounds

    def _is_empty(self, part: int) -> bool:
        """Whether a member's own part holds no value: it cannot be reached, or its line is too slow for one block."""
        begin, end = self.bounds[part]
        return begin == end

    @property
    def own_slice(self) -> tuple[int, int]:
        """The range of values this peer reduces in its group; empty when it reduces nothing."""
        self.require_members()
        return self.seats.slice_of(self.own_part)

    def group(self, number: int | None = None) -> tuple[str, ...]:
        """Members of a group, its leader first; of our own by default."""
        members = self.require_members().members
        return tuple(members[index] for index in self.seats.groups[self.own_group if number is None else number])

    def senders(self, number: int | None = None) -> tuple[str, ...]:
        """Whose updates a group averages: its members, then the contributors that they bring in, in list order."""
        members = self.require_members()
        own = self.own_group if number is None else number
        hosted = (peer_id for peer_id, (host, _) in members.guests.items() if self.seats.group_of[host] == own)
        return (*self.group(number), *hosted)

    def sponsor(self, sender: str) -> str:
        """Who sends this update: the sender itself, or the member that brings a contributor's in."""
        members = self.require_members()
        return members.members[members.guests[sender][0]] if sender in members.guests else sender
