"""What a simulated list makes of its groups: who is gone costs what it held, and no more."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from blockswarm.swarm.policy.grouping_arrays import seat
from blockswarm.swarm.policy.phases import PhaseLengths, times_of, with_combining
from blockswarm.swarm.simulation.combining import Combined, Members, combine

COUNT = 12
SEATS = seat(np.full(COUNT, True), 4)
LENGTHS = PhaseLengths(meet=3.0, scatter=2.0, decide=2.0, gather=2.0, commit=2.0)
TIMES = with_combining(times_of(1, 0.0, 20.0, LENGTHS), SEATS.count)


def members(**changes: object) -> Members:
    """Twelve that are all there and have decided; a message takes 0.1 s."""
    fine = Members(
        parts=np.full(COUNT, 1000.0),
        up=np.full(COUNT, 1e6),
        down=np.full(COUNT, 1e6),
        delay=np.full(COUNT, 0.05),
        leaves=np.full(COUNT, math.inf),
        heard=np.full(COUNT, True),
        reported=np.full(COUNT, True),
        sums_out=np.zeros(COUNT),
        sums_in=np.zeros(COUNT),
        results_out=np.zeros(COUNT),
        results_in=np.zeros(COUNT),
        decided=np.full(SEATS.count, True),
        decided_at=np.full(SEATS.count, TIMES.scatter_end + 0.2),
        proposer=0,
    )
    return dataclasses.replace(fine, **changes)


def run(**changes: object) -> Combined:
    return combine(members(**changes), SEATS, TIMES)


def test_where_everybody_stays_all_groups_count_as_soon_as_three_messages_have_gone() -> None:
    combined = run()
    assert combined.committed and combined.counted.all() and combined.holds.all()
    assert combined.moment == pytest.approx(TIMES.scatter_end + 0.2 + 3 * 0.1 + 0.1)


def test_a_group_without_a_decision_is_left_out_and_its_members_hold_the_state_all_the_same() -> None:
    combined = run(decided=np.array([True, True, False]))
    assert combined.counted.tolist() == [True, True, False] and combined.holds.all()
    assert combined.moment > TIMES.combine_end  # the others waited for it, no longer than the phase


@pytest.mark.parametrize("gone", [1, 5, 11])
def test_a_member_that_leaves_before_it_reduces_costs_its_group_no_more_than_a_slice(gone: int) -> None:
    leaves, reported = np.full(COUNT, math.inf), np.full(COUNT, True)
    leaves[gone], reported[gone] = TIMES.meet_end, False
    combined = run(leaves=leaves, reported=reported)
    assert combined.committed and combined.counted.all()
    assert combined.holds.sum() == COUNT - 1


def test_half_of_the_list_is_no_quorum() -> None:
    leaves = np.where(np.arange(COUNT) < COUNT // 2, math.inf, TIMES.gather_end)
    assert not run(leaves=leaves).committed


def test_a_slow_line_that_passes_parts_on_makes_its_group_fetch_them() -> None:
    slow = np.where(np.arange(COUNT) == 4, 60.0, 0.0)
    combined = run(results_out=slow)
    assert combined.committed and combined.holds.all()
    assert combined.moment < TIMES.gather_end  # the other groups are a quorum, and need not wait for it


def test_one_group_has_its_mean_at_once() -> None:
    seats = seat(np.full(4, True), 4)
    alone = {name: value[:4] for name, value in vars(members()).items() if name != "proposer"}
    alone |= {"decided": np.array([True]), "decided_at": np.array([15.0]), "proposer": 0}
    combined = combine(Members(**alone), seats, times_of(1, 0.0, 20.0, LENGTHS))
    assert combined.moment == pytest.approx(15.0 + 0.1 + 0.1)


def test_the_second_in_order_proposes_in_the_place_of_a_root_that_is_still_sending() -> None:
    heard = np.arange(COUNT) > 0
    combined = run(heard=heard, proposer=1)
    assert combined.committed and combined.holds.tolist() == heard.tolist()
    assert combined.moment > TIMES.gather_end + 0.5 * (TIMES.close - TIMES.gather_end)
