"""How much of the vector each member of a list reduces: parts sized to their lines (docs/protocol.md §6, decision 13).

Everything is integer arithmetic on what the signed list says, so all members cut the vector at the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

ALIGNMENT = 64
"""Parts begin at multiples of this many values, so that every codec's blocks fall within one part."""

MAX_RATE = 2**40
"""Fastest line that a list may name, bytes/s."""

MOST_RATE_RATIO = 4
"""No member counts as faster than this many times the lower median: who boasts, or dies, costs a bounded part."""


@dataclass(frozen=True)
class Bandwidth:
    """What a member says of its line, in whole bytes/s; 0 where it does not know."""

    up: int = 0
    down: int = 0


UNKNOWN = Bandwidth()


def reducing_rates(lines: Sequence[Bandwidth], reachable: Sequence[bool]) -> list[int]:
    """The rate at which each member may reduce, bytes/s; 0 for one that others cannot reach.

    The slower of both ways, for a reducer takes in what it gives out. Who does not know its line counts as the lower
    median of those that do, and nobody as more than ``MOST_RATE_RATIO`` times that.
    """
    told = [min(line.up, line.down or MAX_RATE) for line in lines]
    known = [rate for rate, able in zip(told, reachable, strict=True) if able and rate]
    usual = median_low(known) if known else 1
    return [
        min(rate or usual, MOST_RATE_RATIO * usual) if able else 0 for rate, able in zip(told, reachable, strict=True)
    ]


def part_shares(rates: Sequence[int], downs: Sequence[int]) -> list[int]:
    """The relative sizes of the parts with which scatter and gather together take the least time.

    Of an update of 1, member ``i`` of ``K`` with a part ``x_i`` sends ``1 - x_i`` in the scatter and ``(K - 1) x_i`` in
    the gather, and receives as much the other way round. Its lines send ``u_i`` and receive ``d_i``. One phase waits
    for the other, so what counts is ``S + G`` with

        ``S = max_i max((1 - x_i) / u_i, (K - 1) x_i / d_i)``, ``G = max_i max((K - 1) x_i / u_i, (1 - x_i) / d_i)``.

    Where no line receives slower than it sends, this is least for

        ``x_i = min(u_i, level) / D``, ``D = min(Σ u, min_i((K - 1) d_i + u_i))``, ``level`` so that ``Σ x = 1``:

    parts are proportional to what members send, unless a member could then not receive the whole result in the time
    ``G = (K - 1) / D`` that its gathering takes. Then the fastest are levelled down, and the slowest, which are late in
    the scatter anyway, reduce more (with equal rates both ways all parts become equal). For the slowest sender ``s``,
    ``S + G ≥ 1 / u_s + G (K - 2) / (K - 1)``, ``x_i ≤ G u_i / (K - 1)`` and so ``1 - G d_i ≤ G u_i / (K - 1)``: no
    smaller ``G`` will do, and this split meets the bound.

    Parameters
    ----------
    rates : sequence of int
        What each member sends at most, bytes/s, at most ``d_i``; 0 for one that reduces nothing.
    downs : sequence of int
        What it receives; 0 where it is not known, and no bound.

    Returns
    -------
    list of int
        In list order; 0 for one that reduces nothing.

    Raises
    ------
    ValueError
        If no member has a rate.
    """
    if not any(rates):
        raise ValueError("at least one member must be able to reduce")
    others = len(rates) - 1
    bounds = (others * down + rate for rate, down in zip(rates, downs, strict=True) if down)
    whole = min(sum(rates), *bounds, MAX_RATE * len(rates))
    below = 0
    for index, rate in enumerate(sorted(rates)):
        above = len(rates) - index  # these are levelled, if the level is not above the slowest of them
        if rate * above + below >= whole:
            return [min(each * above, whole - below) for each in rates]
        below += rate
    raise AssertionError("the rates add up to no less than what is shared")


def part_bounds(values: int, shares: Sequence[int]) -> list[tuple[int, int]]:
    """Cut ``[0, values)`` into one contiguous part per member, sized by ``shares``.

    Parameters
    ----------
    values : int
        Length of the vector.
    shares : sequence of int
        Relative sizes, in list order; 0 for a member that reduces nothing.

    Returns
    -------
    list of (int, int)
        Half-open ranges in list order that cover the vector exactly once; who has no share gets an empty one.

    Raises
    ------
    ValueError
        If no member has a share.
    """
    total = sum(shares)
    if total <= 0 or min(shares) < 0:
        raise ValueError("at least one member must be able to reduce")
    blocks = -(-values // ALIGNMENT)
    bounds = []
    begin = cumulative = 0
    for share in shares:
        cumulative += share
        end = min(values, (2 * blocks * cumulative + total) // (2 * total) * ALIGNMENT)  # to the nearest block
        bounds.append((begin, end))
        begin = end
    return bounds
