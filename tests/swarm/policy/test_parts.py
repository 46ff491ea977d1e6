"""Parts sized to the members' lines: exact, the fastest there is, and no prize for boasting."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.policy.parts import (
    ALIGNMENT,
    MAX_RATE,
    MOST_RATE_RATIO,
    Bandwidth,
    part_bounds,
    part_shares,
    reducing_rates,
)

RATES = st.integers(0, MAX_RATE)
LINES = st.lists(st.tuples(st.builds(Bandwidth, RATES, RATES), st.booleans()), min_size=1, max_size=16).filter(
    lambda members: any(able for _, able in members)
)


@given(values=st.integers(1, 10**7), shares=st.lists(st.integers(0, 100), min_size=1, max_size=16))
def test_parts_cover_the_vector_once_in_order_and_begin_at_aligned_values(values: int, shares: list[int]):
    if sum(shares) <= 0:
        with pytest.raises(ValueError, match="able to reduce"):
            part_bounds(values, shares)
        return
    bounds = part_bounds(values, shares)
    assert bounds[0][0] == 0 and bounds[-1][1] == values
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(bounds))
    assert all(begin % ALIGNMENT == 0 or begin == values for begin, _ in bounds)
    assert all(begin == end for (begin, end), share in zip(bounds, shares, strict=True) if share == 0)


def test_a_member_that_cannot_be_reached_reduces_nothing():
    assert part_bounds(1000, [1, 0, 1]) == [(0, 512), (512, 512), (512, 1000)]
    assert reducing_rates([Bandwidth(5, 9)] * 3, [True, False, True]) == [5, 0, 5]


def test_members_that_say_nothing_of_their_lines_reduce_equal_parts():
    seats = Seats(4 * ALIGNMENT, (True,) * 4, 4)
    assert seats.bounds == ((0, 64), (64, 128), (128, 192), (192, 256))
    assert seats == Seats(4 * ALIGNMENT, (True,) * 4, 4, ())


def test_a_slow_uplink_reduces_less_in_proportion():
    lines = (Bandwidth(1000, 8000), Bandwidth(1000, 8000), Bandwidth(250, 8000), Bandwidth(1000, 8000))
    sizes = [end - begin for begin, end in Seats(13 * ALIGNMENT, (True,) * 4, 4, lines).bounds]
    assert [size // ALIGNMENT for size in sizes] == [4, 4, 1, 4]


def test_where_the_slow_uplink_also_receives_slowly_parts_stay_equal():
    """It cannot have the result any sooner, so it may as well reduce its share, and send less of its own update."""
    rates = [1000, 1000, 250, 1000]
    assert len(set(part_shares(rates, rates))) == 1


def test_an_unknown_line_counts_as_the_lower_median_of_those_known():
    lines = [Bandwidth(), Bandwidth(100), Bandwidth(200), Bandwidth(300), Bandwidth(50, 20)]
    assert reducing_rates(lines, [True] * 5) == [100, 100, 200, 300, 20]


def test_who_boasts_reduces_a_bounded_part_more():
    honest = [Bandwidth(1000)] * 7
    rates = reducing_rates([*honest, Bandwidth(MAX_RATE, MAX_RATE)], [True] * 8)
    assert rates == [1000] * 7 + [MOST_RATE_RATIO * 1000]
    shares = part_shares(rates, [0] * 8)
    assert shares[-1] * (7 + MOST_RATE_RATIO) == MOST_RATE_RATIO * sum(shares)


@given(members=LINES, values=st.integers(1, 10**6), group_size=st.integers(2, 8))
def test_whatever_members_say_the_split_is_whole_and_nobody_has_more_than_a_bounded_part(
    members: list[tuple[Bandwidth, bool]], values: int, group_size: int
):
    lines, reachable = tuple(line for line, _ in members), tuple(able for _, able in members)
    bounds = Seats(values, reachable, group_size, lines).bounds
    assert bounds[0][0] == 0 and bounds[-1][1] == values
    assert all(begin == end for (begin, end), able in zip(bounds, reachable, strict=True) if not able)
    able = sum(reachable)
    most = MOST_RATE_RATIO / (MOST_RATE_RATIO + able // 2)  # half of the others count as the median at least
    if group_size >= len(members):  # with several groups it is their slowest that counts
        assert max(end - begin for begin, end in bounds) <= most * values + 2 * ALIGNMENT


def seconds(parts: list[float], ups: list[int], downs: list[int]) -> float:
    """Scatter and gather of an update of 1, one after the other, each as slow as its slowest line."""
    others = len(parts) - 1
    there = max(max((1 - part) / up, others * part / down) for part, up, down in zip(parts, ups, downs, strict=True))
    back = max(max(others * part / up, (1 - part) / down) for part, up, down in zip(parts, ups, downs, strict=True))
    return there + back


GRID = 12
SPLITS = {
    count: [
        [(end - begin - 1) / GRID for begin, end in itertools.pairwise((-1, *cuts, GRID + count - 1))]
        for cuts in itertools.combinations(range(GRID + count - 1), count - 1)
    ]
    for count in (2, 3, 4)
}
"""Every way to cut a whole into so many parts that are multiples of a twelfth."""


@pytest.mark.parametrize("count", sorted(SPLITS))
@settings(max_examples=40)
@given(data=st.data())
def test_no_other_split_takes_less_time(count: int, data: st.DataObject):
    """Lines that receive at least as fast as they send, as homes have them; against brute force."""
    ups = data.draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    downs = [up + data.draw(st.integers(0, 100)) for up in ups]
    shares = part_shares(ups, downs)
    ours = seconds([share / sum(shares) for share in shares], ups, downs)
    assert ours <= min(seconds(parts, ups, downs) for parts in SPLITS[count]) * (1 + 1e-9)


def test_of_several_groups_the_slowest_that_reduces_a_part_says_how_large_it_is():
    lines = (Bandwidth(400), Bandwidth(400), Bandwidth(400), Bandwidth(100), Bandwidth(400), Bandwidth(400))
    seats = Seats(9 * ALIGNMENT * 2, (True,) * 6, 3, lines)
    assert seats.count == 2 and seats.reducer(1, 2) == 3
    sizes = [(end - begin) // ALIGNMENT for begin, end in seats.bounds]
    assert sizes == [4, 4, 1, 1, 4, 4]
