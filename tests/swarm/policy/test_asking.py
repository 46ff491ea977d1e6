"""Newcomers spread over all who hold a state, and the directory is read as often as a swarm's size allows."""

from __future__ import annotations

from collections import Counter

import pytest

from blockswarm.swarm.policy.asking import LONGEST_OTHERS, LONGEST_OWN, MAX_ASKED, MOST_TOLD, donors_for, look_seconds

HOLDERS = [f"holder{number}" for number in range(100)]


def test_everybody_asks_others_first_and_each_the_same_again_in_the_same_round() -> None:
    orders = [donors_for(f"peer{number}", [], HOLDERS, turn=7) for number in range(200)]
    assert orders[0] == donors_for("peer0", [], reversed(HOLDERS), turn=7)
    assert all(sorted(order) == sorted(HOLDERS) for order in orders)
    asked = Counter(peer_id for order in orders for peer_id in order[:MAX_ASKED])
    assert asked.keys() == set(HOLDERS)
    assert max(asked.values()) < 3 * 200 * MAX_ASKED / len(HOLDERS)


def test_who_met_only_holders_that_lag_behind_meets_others_in_the_next_round() -> None:
    first, second = (set(donors_for("peer", [], HOLDERS, turn=turn)[:MAX_ASKED]) for turn in (7, 8))
    assert len(first & second) < MAX_ASKED / 2


def test_who_told_of_a_state_is_asked_but_is_not_everybodys_first_donor() -> None:
    orders = [donors_for(f"peer{number}", ["leader"], HOLDERS, turn=7) for number in range(200)]
    assert all("leader" in order[:MAX_ASKED] for order in orders)
    assert sum(order[0] == "leader" for order in orders) < 200 / 4


def test_claims_to_be_ahead_leave_room_for_others() -> None:
    liars = [f"liar{number}" for number in range(50)]
    order = donors_for("peer", liars, HOLDERS, turn=1)
    assert len(set(order)) == len(order) == 150
    told = order[:MAX_ASKED]
    assert sum(peer_id in liars for peer_id in told) >= MOST_TOLD
    assert any(peer_id in HOLDERS for peer_id in told)


def test_nobody_asks_itself() -> None:
    assert donors_for("holder3", ["holder3"], HOLDERS[:4], turn=1) != []
    assert "holder3" not in donors_for("holder3", ["holder3"], HOLDERS[:4], turn=1)


@pytest.mark.parametrize(
    ("round_seconds", "records", "own", "seconds"),
    [
        (10.0, 4, True, 2.5),
        (10.0, 8, False, 2.5),
        (60.0, 4, True, 5.0),
        (60.0, 60, False, 9.4),
        (10.0, 500, True, LONGEST_OWN),
        (10.0, 500, False, LONGEST_OTHERS),
    ],
)
def test_small_swarms_read_the_directory_often_and_large_ones_as_they_can_afford(
    round_seconds: float, records: int, own: bool, seconds: float
) -> None:
    assert look_seconds(round_seconds=round_seconds, records=records, own=own) == pytest.approx(seconds, abs=0.05)
