"""Who averages with whom, and which part of the vector each member reduces (docs/protocol.md §6, decision 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from blockswarm.swarm.policy.parts import UNKNOWN, Bandwidth, part_bounds, part_shares, reducing_rates


def choose_members(reachable: Mapping[str, bool], *, leader: str, group_size: int, limit: int) -> list[str]:
    """The members of one list: the leader and the first others of the order, at most ``limit`` in all.

    Every group needs a member that others can reach; where there are too few of these for groups of ``group_size``,
    the last of those that cannot be reached stay outside.

    Parameters
    ----------
    reachable : mapping
        Who takes part, in the round's order, and whether others can reach it.
    leader : str
        Who signs the list; one of them.
    group_size, limit : int
        Most members of a group, and of the list.
    """
    chosen = [leader, *(peer_id for peer_id in reachable if peer_id != leader)][:limit]
    room = group_size * sum(reachable[peer_id] for peer_id in chosen)
    for peer_id in chosen[:0:-1]:
        if len(chosen) <= room:
            break
        if not reachable[peer_id]:
            chosen.remove(peer_id)
    return chosen


def group_count(members: int, reachable: int, group_size: int) -> int:
    """Into how many groups a list is cut: no larger than ``group_size``, each with somebody that can be reached."""
    return max(1, min(-(-members // group_size), reachable))


@dataclass(frozen=True)
class Seats:
    """Who does what in one list; all numbers are list positions, from 0.

    Members are dealt out to the groups in list order, those that others can reach first. So the groups are of equal
    size, or differ by one, and the members of equal rank among the reachable of each group stand next to each other in
    the list: their parts together are a contiguous slice, which each of them reduces for its own group.
    """

    values: int
    """Length of the vector."""
    reachable: tuple[bool, ...]
    group_size: int
    """Most members of a group, from the manifest."""
    lines: tuple[Bandwidth, ...] = ()
    """What each member says of its line; empty where nobody does."""

    @cached_property
    def count(self) -> int:
        """How many groups there are."""
        return group_count(len(self.reachable), sum(self.reachable), self.group_size)

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """The group of each member."""
        dealt = sorted(range(len(self.reachable)), key=lambda position: not self.reachable[position])
        return tuple(group for _, group in sorted((position, turn % self.count) for turn, position in enumerate(dealt)))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The members of each group in list order; the first leads it."""
        return tuple(
            tuple(position for position, group in enumerate(self.group_of) if group == wanted)
            for wanted in range(self.count)
        )

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Each member's own part: the range of which it makes the swarm's mean out of the groups' means.

        With several groups a part is reduced by somebody in each: the slowest of them says how large it can be.
        """
        lines = self.lines or (UNKNOWN,) * len(self.reachable)
        rates = reducing_rates(lines, self.reachable)
        slowest = [
            min(rates[self.reducer(group, part)] for group in range(self.count)) if able else 0
            for part, able in enumerate(self.reachable)
        ]
        return tuple(part_bounds(self.values, part_shares(slowest, [line.down for line in lines])))

    def reducer(self, group: int, part: int) -> int:
        """The member that reduces the part of member ``part`` within ``group``: itself in its own group."""
        mine = self._reducers[group]
        return mine[min(self._rank[part] // self.count, len(mine) - 1)]

    def slice_of(self, position: int) -> tuple[int, int]:
        """The range that a member reduces within its group; empty for one that others cannot reach."""
        parts = self.parts_of(position)
        return (self.bounds[parts[0]][0], self.bounds[parts[-1]][1]) if parts else self.bounds[position]

    def parts_of(self, position: int) -> list[int]:
        """The parts of that range that hold any value, each by the member whose own it is."""
        if not self.reachable[position]:
            return []
        group = self.group_of[position]
        mine = self._reducers[group]
        rank = mine.index(position)
        end = None if rank == len(mine) - 1 else (rank + 1) * self.count
        return [part for part in self._ranked[rank * self.count : end] if self.bounds[part][0] < self.bounds[part][1]]

    @cached_property
    def _ranked(self) -> list[int]:
        return [position for position, reachable in enumerate(self.reachable) if reachable]

    @cached_property
    def _rank(self) -> dict[int, int]:
        return {position: rank for rank, position in enumerate(self._ranked)}

    @cached_property
    def _reducers(self) -> list[list[int]]:
        return [[position for position in group if self.reachable[position]] for group in self.groups]
