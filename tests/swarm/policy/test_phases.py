"""Phases of a round: where they stand on the clock, and how they follow size and bandwidth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.swarm.policy.phases import (
    LEAST_SECONDS,
    SHARE_OF_ROUND,
    PhaseLengths,
    default_phases,
    next_round_to_join,
    round_in_progress,
    times_of,
    with_combining,
)

LENGTHS = PhaseLengths(meet=3.0, scatter=1.0, decide=1.0, gather=1.0, commit=2.0)


def test_a_round_closes_at_genesis_plus_its_number_of_rounds_and_the_phases_stand_right_before():
    times = times_of(4, 1000.0, 20.0, LENGTHS)
    assert times.close == 1080.0
    assert (times.train_end, times.meet_end, times.scatter_end) == (1072.0, 1075.0, 1076.0)
    assert (times.decide_end, times.gather_end) == (1077.0, 1078.0)


def test_only_a_round_with_several_groups_gives_up_time_to_combine_them_and_none_of_it_before_the_list():
    times = times_of(4, 1000.0, 20.0, LENGTHS)
    assert with_combining(times, 1) == times and times.combine_end == times.decide_end
    several = with_combining(times, 3)
    assert with_combining(times, 2) == several
    assert (several.train_end, several.meet_end, several.close) == (times.train_end, times.meet_end, times.close)
    moments = (several.scatter_end, several.decide_end, several.combine_end, several.gather_end)
    assert moments == pytest.approx((1075.8, 1076.6, 1077.6, 1078.4))


@pytest.mark.parametrize(("now", "number"), [(900.0, 1), (1000.0, 1), (1019.9, 1), (1020.0, 2), (1030.0, 2)])
def test_the_round_in_progress_is_the_one_that_closes_next(now: float, number: int):
    assert round_in_progress(now, 1000.0, 20.0) == number


def test_who_comes_after_the_end_of_training_joins_the_next_round():
    assert next_round_to_join(1011.9, 1000.0, 20.0, LENGTHS) == 1
    assert next_round_to_join(1012.0, 1000.0, 20.0, LENGTHS) == 2


@given(seconds=st.floats(5, 3600), size=st.integers(1_000, 10**9), bandwidth=st.floats(1e4, 1e9))
def test_phases_fit_in_their_share_and_leave_time_to_move_the_update_twice_over(
    seconds: float, size: int, bandwidth: float
):
    try:
        lengths = default_phases(seconds, size, bandwidth)
    except ValueError as error:
        # Refused only when the least that is needed does not fit, and the message says how long a round would do.
        assert sum(LEAST_SECONDS.values()) + 4 * size / bandwidth > SHARE_OF_ROUND * seconds
        assert "needs at least" in str(error)
        return
    assert lengths.total <= SHARE_OF_ROUND * seconds + 0.01
    assert lengths.scatter >= 2 * size / bandwidth and lengths.gather >= 2 * size / bandwidth
    assert all(getattr(lengths, name) >= least - 0.001 for name, least in LEAST_SECONDS.items())
