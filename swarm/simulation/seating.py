"""The groups of a simulated round's lists, all in one table: who sits where, and how much each reduces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.grouping_arrays import SeatArrays, seat, slowest_reducers
from blockswarm.swarm.policy.parts import Bandwidth, part_bounds, part_shares, reducing_rates
from blockswarm.swarm.simulation.meeting import Lists
from blockswarm.swarm.simulation.peers import Bools, Floats, Ints
from blockswarm.swarm.simulation.world import World


@dataclass(frozen=True)
class Groups:
    """The groups of all lists; arrays of shape [groups, members of a group] unless said otherwise."""

    seats: list[SeatArrays]
    """Of each list."""
    list_of: Ints
    """Which list a group is of, shape [groups]; those of a list stand together, in order."""
    count: Ints
    """How many groups its list has, shape [groups]."""
    members: Ints
    """Rows of peers, in list order; -1 where a group has no more."""
    place: Ints
    """Their positions in the list."""
    parts: Floats
    """Bytes of the part that each member owns."""
    slices: Floats
    """Bytes that each reduces in its group."""

    @property
    def present(self) -> Bools:
        """Where ``members`` holds somebody."""
        return self.members >= 0

    def of(self, number: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The groups of one list; where its members stand, in list order: in which of all groups, at which place."""
        groups = np.flatnonzero(self.list_of == number)
        row, column = np.nonzero(self.members[groups] >= 0)
        order = np.argsort(self.place[groups][row, column])
        return groups, groups[row[order]], column[order]

    def whole(self) -> Floats:
        """Bytes of an encoded update of each group's list, shape [groups]."""
        parts = self.parts.sum(axis=1)
        return np.bincount(self.list_of, weights=parts, minlength=len(self.seats)).astype(np.float64)[self.list_of]


def deal_out(world: World, lists: Lists) -> Groups:
    """Deal every list's members out to groups, and give everyone its part and its slice."""
    hidden, present = world.peers.hidden, lists.present
    seats: list[SeatArrays] = []
    rows: list[tuple[int, npt.NDArray[np.intp], Floats, Floats]] = []
    for number in range(len(lists.subject)):
        members = lists.members[number][present[number]]
        if not len(members):
            seats.append(SeatArrays(1, np.zeros(0, dtype=np.int64), np.zeros((1, 0), dtype=np.int64)))
            continue
        reachable = ~hidden[members]
        if len(members) == 1:
            reachable[:] = True
        seated = seat(reachable, world.shape.group_size)
        column = world.column(int(lists.subject[number]))
        values = world.shape.values[column]
        share = world.shape.update_bytes[column] / values
        lines = [
            Bandwidth(int(up), int(down))
            for up, down in zip(world.peers.up[members], world.peers.down[members], strict=True)
        ]
        slowest = slowest_reducers(seated, np.array(reducing_rates(lines, reachable.tolist()), dtype=np.int64))
        shares = part_shares(slowest.tolist(), [line.down for line in lines])
        parts = share * np.diff(np.array(part_bounds(values, shares)), axis=1)[:, 0]
        seats.append(seated)
        for group in range(seated.count):
            slices = np.bincount(seated.reducer[group][reachable], weights=parts[reachable], minlength=len(members))
            rows.append((number, np.flatnonzero(seated.group_of == group), parts, slices.astype(np.float64)))
    width = max((len(places) for _, places, _, _ in rows), default=1)
    shape = (len(rows), width)
    found = Groups(
        seats=seats,
        list_of=np.array([number for number, *_ in rows], dtype=np.int64),
        count=np.array([seats[number].count for number, *_ in rows], dtype=np.int64),
        members=np.full(shape, -1, dtype=np.int64),
        place=np.zeros(shape, dtype=np.int64),
        parts=np.zeros(shape),
        slices=np.zeros(shape),
    )
    for index, (number, places, owned, reduced) in enumerate(rows):
        found.members[index, : len(places)] = lists.members[number, places]
        found.place[index, : len(places)] = places
        found.parts[index, : len(places)] = owned[places]
        found.slices[index, : len(places)] = reduced[places]
    return found
