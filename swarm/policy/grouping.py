"""Who averages with whom, and which part of the vector each member reduces."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64
"""Parts begin at multiples of this many values, so that every codec's blocks fall within one part."""


def choose_members(ordered: Sequence[str], *, leader: str, limit: int) -> list[str]:
    """The members of one group: the leader and the first others of the order, at most ``limit`` in all."""
    others = [peer_id for peer_id in ordered if peer_id != leader]
    return [leader, *others[: limit - 1]]


def part_bounds(values: int, shares: Sequence[float]) -> list[tuple[int, int]]:
    """Cut ``[0, values)`` into one contiguous part per member, sized by ``shares``.

    Parameters
    ----------
    values : int
        Length of the vector.
    shares : sequence of float
        Relative reducing capacity of each member, in list order; 0 for one that others cannot reach.

    Returns
    -------
    list of (int, int)
        Half-open ranges in list order that cover the vector exactly once; who has no share gets an empty one.

    Raises
    ------
    ValueError
        If no member has a share.
    """
    total = float(sum(shares))
    if total <= 0 or min(shares) < 0:
        raise ValueError("at least one member must be able to reduce")
    bounds = []
    begin, cumulative = 0, 0.0
    last = max(index for index, share in enumerate(shares) if share > 0)
    for index, share in enumerate(shares):
        cumulative += share
        end = values if index >= last else min(values, round(values * cumulative / total / ALIGNMENT) * ALIGNMENT)
        bounds.append((begin, end))
        begin = end
    return bounds
