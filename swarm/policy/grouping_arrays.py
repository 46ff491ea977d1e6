"""`grouping.Seats` as arrays: who reduces what in a list, for a swarm's rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.grouping import group_count

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SeatArrays:
    """Who does what in one list; positions from 0."""

    count: int
    """How many groups there are."""
    group_of: Ints
    """The group of each member, shape [members]."""
    reducer: Ints
    """The member that reduces a part within a group, shape [groups, members]; -1 where the part's owner has none."""


def seat(reachable: Bools, group_size: int) -> SeatArrays:
    """The seats of one list.

    Parameters
    ----------
    reachable : ndarray of bool, shape [members]
        Whether others can reach a member, in list order; at least one.
    group_size : int
        Most members of a group, from the manifest.
    """
    owners = np.flatnonzero(reachable)
    count = group_count(len(reachable), len(owners), group_size)
    group_of = np.empty(len(reachable), dtype=np.int64)
    group_of[np.argsort(~reachable, kind="stable")] = np.arange(len(reachable)) % count
    groups = np.arange(count)[:, None]
    columns = (len(owners) - groups + count - 1) // count  # reducers of each group
    ranks = np.minimum(np.arange(len(owners)) // count, columns - 1) * count + groups
    reducer = np.full((count, len(reachable)), -1, dtype=np.int64)
    reducer[:, owners] = owners[ranks]
    return SeatArrays(count, group_of, reducer)


def slowest_reducers(seats: SeatArrays, rates: Ints) -> Ints:
    """Of each part the rate of the slowest that reduces it in any group, shape [members]; 0 where nobody does.

    ``rates`` are those of `parts.reducing_rates`, shape [members].
    """
    slowest: Ints = rates[seats.reducer].min(axis=0)
    slowest[seats.reducer[0] < 0] = 0
    return slowest
