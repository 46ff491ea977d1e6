"""Which updates enter the average: whole, finite, of a sane size, and none with more than its share of the weight."""

import pytest

from blockswarm.swarm.policy.acceptance import PartReport, Verdict, decide, heavier, quorum
from blockswarm.swarm.policy.robust import Robust


def verdict(samples: dict[str, float], *reports: dict[str, PartReport], robust: Robust = "none") -> Verdict:
    return decide(samples, reports, max_norm_ratio=10.0, max_weight_ratio=4.0, robust=robust, clip_ratio=2.0)


def fine(norm: float) -> PartReport:
    return PartReport(norm**2)


def test_updates_that_came_whole_weigh_their_samples():
    result = verdict({"a": 100, "b": 300}, {"a": fine(1), "b": fine(2)}, {"a": fine(1), "b": fine(2)})
    assert result == Verdict({"a": 100.0, "b": 300.0}, {})


def test_one_reducer_that_saw_a_problem_is_enough_to_leave_an_update_out_and_its_word_is_the_reason():
    result = verdict(
        {"a": 1, "b": 1, "c": 1},
        {p: fine(1) for p in "abc"},
        {**{p: fine(1) for p in "ab"}, "c": PartReport(0, "late")},
    )
    assert set(result.weights) == {"a", "b"}
    assert result.rejected == {"c": "late"}


def test_a_sender_nobody_speaks_of_is_left_out():
    assert verdict({"a": 1, "b": 1}, {"a": fine(1)}).rejected == {"b": "nothing arrived"}


@pytest.mark.parametrize("count", [2, 3, 8])
def test_an_absurd_norm_is_left_out_in_groups_of_any_size(count: int):
    samples = {f"p{number}": 100.0 for number in range(count)}
    report = {peer: fine(1.0) for peer in samples} | {"p1": fine(1e4)}
    result = verdict(samples, report)
    assert list(result.rejected) == ["p1"] and "norm" in result.rejected["p1"]


def test_a_fast_peer_is_not_punished_for_having_moved_further():
    assert not verdict({"slow": 10, "fast": 500}, {"slow": fine(0.2), "fast": fine(9.0)}).rejected


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_long_update_is_shortened_to_twice_what_its_peers_suggest(count: int):
    samples = {f"p{number}": 100.0 for number in range(count)}
    report = {peer: fine(1.0) for peer in samples} | {"p1": fine(8.0)}
    result = verdict(samples, report, robust="clip")
    assert result.clips == {"p1": pytest.approx(0.25)} and not result.rejected
    assert not verdict(samples, report).clips


def test_more_samples_excuse_a_longer_update_from_being_shortened():
    assert not verdict({"slow": 10, "fast": 100}, {"slow": fine(1), "fast": fine(9)}, robust="clip").clips
    assert verdict({"slow": 100, "fast": 100}, {"slow": fine(1), "fast": fine(9)}, robust="clip").clips


@pytest.mark.parametrize("robust", ["trimmed", "centered"])
def test_where_outliers_are_found_otherwise_nobody_is_shortened_but_in_small_groups(robust: Robust):
    for count, clipped in ((3, ["p1"]), (4, [])):
        samples = {f"p{number}": 100.0 for number in range(count)}
        report = {peer: fine(1.0) for peer in samples} | {"p1": fine(8.0)}
        assert list(verdict(samples, report, robust=robust).clips) == clipped


def test_who_is_left_out_is_not_shortened_too():
    result = verdict({"a": 1, "b": 1, "c": 1}, {"a": fine(1), "b": fine(1), "c": fine(1e3)}, robust="clip")
    assert list(result.rejected) == ["c"] and not result.clips


def test_no_weight_exceeds_four_times_the_median():
    result = verdict({"a": 10, "b": 10, "c": 10_000}, {p: fine(1) for p in "abc"})
    assert result.weights["c"] == 40.0


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_samples_that_nobody_can_have_excuse_no_absurd_norm_and_give_no_absurd_weight(honest: int):
    samples = {f"p{number}": 32.0 for number in range(honest)} | {"liar": 2.0**47}
    report = {peer: fine(1.0) for peer in samples}
    assert verdict(samples, report).weights["liar"] == 4 * 32.0
    assert list(verdict(samples, report | {"liar": fine(1e4)}).rejected) == ["liar"]


def test_an_update_without_samples_does_not_count():
    assert verdict({"a": 0, "b": 5}, {"a": fine(0), "b": fine(1)}).rejected == {"a": "no samples"}


def test_nobody_is_accepted_when_no_reducer_reported():
    assert verdict({"a": 1, "b": 1}).weights == {}


@pytest.mark.parametrize(("members", "votes"), [(1, 1), (2, 2), (3, 2), (4, 3), (16, 9)])
def test_a_quorum_is_more_than_half_so_two_of_them_always_share_a_member(members: int, votes: int):
    assert quorum(members) == votes
    assert 2 * votes > members


def test_the_state_with_more_certified_samples_wins_and_a_tie_goes_to_the_lower_digest():
    low, high = b"\x01" * 32, b"\x02" * 32
    assert heavier(11, high, 10, low)
    assert heavier(10, low, 10, high) and not heavier(10, high, 10, low)
    assert not heavier(10, low, 10, low)
