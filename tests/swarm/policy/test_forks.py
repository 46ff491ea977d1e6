"""Which of two lines wins, and what the replicas of the other one bring in."""

from __future__ import annotations

import math

import pytest

from blockswarm.swarm.policy.forks import (
    LEAST_PACE,
    Brought,
    LineRound,
    Pin,
    Weighing,
    contributions,
    expected_share,
    merge_amount,
    merge_pace,
    pins_to_drop,
    plan_merge,
    weigh,
)
from blockswarm.swarm.policy.robust import Robust

LOW, HIGH = b"\x01" * 32, b"\x02" * 32


def test_what_a_round_gained_is_split_by_announced_samples_capped_as_in_a_decision():
    rounds = [LineRound({"a": 10, "b": 30}, 40), LineRound({"a": 10, "b": 0, "c": 1_000_000}, 50)]
    assert contributions(rounds, 4.0) == {"a": 10 + 10, "b": 30, "c": 40}


def test_what_a_contributor_brought_is_its_sponsors_capped_and_discounted_as_in_a_decision():
    entry = LineRound({"a": 10, "b": 10}, 40, (Brought("a", 10**9, 0.5),))
    assert contributions([entry], 4.0) == {"a": 30, "b": 10}
    assert contributions([LineRound({"a": 0}, 0, (Brought("a", 8, 1.0),))], 4.0) == {}


def test_a_round_that_gained_nothing_is_nobodys():
    assert contributions([LineRound({"a": 0}, 0)], 4.0) == {}


def test_the_line_with_more_samples_since_the_ancestor_wins_and_both_sides_find_the_same():
    one, other = {"a": 100.0, "b": 100.0}, {"c": 90.0}
    assert weigh(one, other, HIGH, LOW, 4.0) == Weighing(200.0, 90.0, other_wins=False)
    assert weigh(other, one, LOW, HIGH, 4.0) == Weighing(90.0, 200.0, other_wins=True)


def test_one_identity_that_claims_a_million_samples_does_not_outweigh_a_crowd():
    crowd, claimed = dict.fromkeys("abcde", 100.0), {"x": 1e6}
    assert weigh(crowd, claimed, HIGH, LOW, 4.0) == Weighing(500.0, 400.0, other_wins=False)


def test_on_a_tie_the_lower_digest_wins():
    assert weigh({"a": 1.0}, {"b": 1.0}, HIGH, LOW, 4.0).other_wins
    assert not weigh({"a": 1.0}, {"b": 1.0}, LOW, HIGH, 4.0).other_wins


def test_the_losing_replicas_bring_in_the_share_of_their_line_together_whoever_of_them_comes_back():
    weighing, own = Weighing(100.0, 300.0, other_wins=True), {"a": 60.0, "b": 40.0}
    plans = [plan_merge(weighing, own, peer, own_norm=1.0, other_norm=3.0) for peer in own]
    assert [plan.factor for plan in plans] == pytest.approx([0.25 * 0.6, 0.25 * 0.4])


def test_a_longer_way_than_the_winners_is_shortened_to_it():
    plan = plan_merge(Weighing(1.0, 1.0, True), {"a": 1.0}, "a", own_norm=10.0, other_norm=2.0)
    assert plan.clip == pytest.approx(0.2) and plan.factor == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("own", "own_norm", "reason"),
    [
        ({"b": 1.0}, 1.0, "none of that work is this peer's"),
        ({"a": 1.0}, math.nan, "the way from the fork is not finite"),
        ({"a": 1.0}, math.inf, "the way from the fork is not finite"),
        ({"a": 1.0}, 0.0, "there is nothing to bring in"),
    ],
)
def test_nothing_is_merged_and_it_is_said_why(own: dict[str, float], own_norm: float, reason: str):
    plan = plan_merge(Weighing(1.0, 1.0, True), own, "a", own_norm=own_norm, other_norm=1.0)
    assert plan.reason == reason and plan.factor == 0.0


def test_the_share_of_an_update_in_a_mean_is_known_from_the_list():
    def share(groups: list[dict[str, int]], robust: Robust = "clip") -> float:
        return expected_share(groups, "a", max_weight_ratio=4.0, robust=robust)

    assert share([{"a": 10, "b": 30}]) == 0.25
    assert share([{"a": 100, "b": 10, "c": 10}]) == pytest.approx(40 / 60)  # capped at four times the median
    assert share([{"a": 10, "b": 10}, {"c": 60}]) == pytest.approx(0.125)
    assert share([dict.fromkeys("abcde", 1) | {"a": 3}], "trimmed") == pytest.approx(0.2)
    assert share([{"a": 0, "b": 10}]) == 0.0


def test_a_round_takes_as_much_of_a_merge_as_its_update_is_long():
    paced = merge_amount(1.0, share=0.25, norm=8.0, update_norm=2.0, pace=1.0)
    assert paced == pytest.approx(2.0 * 0.25 / 8.0)
    assert merge_amount(0.01, share=0.25, norm=8.0, update_norm=2.0, pace=1.0) == 0.01
    assert merge_amount(-0.01, share=0.25, norm=8.0, update_norm=2.0, pace=1.0) == -0.01  # too much went in: back
    assert merge_amount(1.0, share=1.0, norm=8.0, update_norm=0.0, pace=math.inf) == 1.0  # alone nobody is in the way
    assert merge_amount(1.0, share=0.0, norm=8.0, update_norm=2.0, pace=1.0) == 0.0


def test_the_pace_leaves_room_below_what_peers_shorten_or_refuse():
    assert merge_pace("clip", clip_ratio=2.0, max_norm_ratio=10.0) == 1.0
    assert merge_pace("none", clip_ratio=2.0, max_norm_ratio=3.0) == 1.0
    assert merge_pace("clip", clip_ratio=1.0, max_norm_ratio=10.0) == LEAST_PACE


def test_old_fork_points_go_first_then_those_that_few_were_lost_after():
    pins = {
        b"many": Pin(5, frozenset("abc"), since=90.0),
        b"back": Pin(6, frozenset(), since=99.0),
        b"few": Pin(7, frozenset("d"), since=95.0),
        b"late": Pin(9, frozenset("efg"), since=99.0),
        b"old": Pin(1, frozenset("abcd"), since=0.0),
    }
    assert pins_to_drop(pins, 100.0, most=2, seconds=50.0) == [b"back", b"old", b"few"]
