"""Who is a contributor, what its late work weighs, and who has room to bring it in."""

from __future__ import annotations

import math

import pytest

from blockswarm.swarm.policy.acceptance import PartReport, Verdict, decide
from blockswarm.swarm.policy.contributing import (
    MOST_HOSTED,
    RETURN_BELOW,
    STALEST,
    SWITCH_AFTER,
    Role,
    age_of,
    age_problem,
    can_contribute,
    load_of,
    room_for_guests,
    staleness_discount,
    takes_late_work,
    training_seconds,
)


def test_a_step_and_an_upload_that_do_not_fit_a_round_are_too_much_and_so_is_an_upload_longer_than_its_phase():
    assert load_of(20.0, 15.0, round_seconds=30.0, scatter_seconds=20.0) == pytest.approx(35 / 30)
    assert load_of(1.0, 10.0, round_seconds=30.0, scatter_seconds=5.0) == 2.0
    assert load_of(1.0, 0.0, round_seconds=30.0, scatter_seconds=5.0) < 0.1


def judged(role: Role, *loads: float, others: bool = True) -> Role:
    for load in loads:
        role = role.judged(load, others=others)
    return role


def test_a_role_changes_only_after_several_judgements_in_a_row_and_not_back_in_the_band_between():
    slow, between, fast = 1.1, (RETURN_BELOW + 1) / 2, RETURN_BELOW - 0.1
    almost = [slow] * (SWITCH_AFTER - 1)
    assert not judged(Role(), *almost).contributor
    assert not judged(Role(), *almost, fast, *almost).contributor
    contributor = judged(Role(), *almost, slow)
    assert contributor.contributor
    assert judged(contributor, *([between] * 20)).contributor
    assert judged(contributor, *([fast] * (SWITCH_AFTER - 1)), between, fast).contributor
    assert not judged(contributor, *([fast] * SWITCH_AFTER)).contributor


def test_loads_around_the_limit_change_the_role_at_most_once():
    role, changes = Role(), 0
    for turn in range(200):
        after = role.judged(1.0 + 0.1 * math.sin(turn / 7), others=True)
        changes += after.contributor != role.contributor
        role = after
    assert changes == 1


def test_the_first_judgement_counts_at_once_and_without_a_member_there_is_no_contributor():
    assert Role().judged(2.0, others=True, at_once=True).contributor
    assert not Role().judged(2.0, others=False, at_once=True).contributor
    assert not Role(contributor=True).judged(2.0, others=False).contributor


@pytest.mark.parametrize("discount", [0.25, 0.5, 0.9])
def test_age_takes_nothing_from_work_on_the_parent_the_carry_discount_from_one_round_and_more_from_older(
    discount: float,
):
    shares = [staleness_discount(age, discount) for age in range(STALEST + 1)]
    assert shares[0] == 1.0 and shares[1] == pytest.approx(discount)
    assert shares == sorted(shares, reverse=True) and all(0 < share <= 1 for share in shares)
    assert [staleness_discount(age, 0.5) for age in (1, 2, 3)] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert staleness_discount(3, 1.0) == 1.0 and staleness_discount(1, 0.0) == 0.0


def test_bases_of_the_future_and_of_more_than_eight_rounds_ago_are_refused():
    assert age_of(5, 4) == 0 and age_problem(5, 4) == ""
    assert "future" in age_problem(5, 5)
    assert age_problem(STALEST + 1, 0) == "" and "at most 8" in age_problem(STALEST + 2, 0)


def test_a_run_that_drops_late_work_or_gives_weights_no_meaning_has_no_contributors():
    assert takes_late_work("carry", "clip") and takes_late_work("carry", "centered")
    assert not takes_late_work("drop", "clip") and not takes_late_work("carry", "trimmed")


@pytest.mark.parametrize(
    ("step", "upload", "seconds"),
    [(1.0, 0.0, 30.0), (45.0, 0.0, 45.0), (1.0, 60.0, 60.0), (1.0, 100.0, 20.0), (100.0, 100.0, 100.0)],
)
def test_a_contributor_trains_a_round_a_step_or_as_long_as_it_uploads(step: float, upload: float, seconds: float):
    assert training_seconds(step, upload, 30.0) == seconds


def test_who_cannot_hand_over_a_single_step_in_time_is_told_so():
    assert can_contribute(100.0, 100.0, 30.0) and not can_contribute(150.0, 100.0, 30.0)


def test_a_member_brings_one_in_if_it_goes_out_beside_its_own_in_most_of_the_phase():
    assert room_for_guests(0.0, 10.0) == room_for_guests(0.1, 10.0) == MOST_HOSTED == 1
    assert room_for_guests(4.0, 10.0) == 1 and room_for_guests(4.1, 10.0) == 0


def verdict(samples: dict[str, float], norms: dict[str, float], discounts: dict[str, float]) -> Verdict:
    report = {sender: PartReport(norm**2) for sender, norm in norms.items()}
    return decide(
        samples, [report], max_norm_ratio=10.0, max_weight_ratio=4.0, robust="clip", clip_ratio=2.0, discounts=discounts
    )


def test_a_contributor_weighs_its_capped_samples_times_its_discount():
    norms = {"a": 1.0, "b": 1.0, "slow": 1.0}
    assert verdict({"a": 16, "b": 16, "slow": 32}, norms, {"slow": 0.5}).weights == {"a": 16, "b": 16, "slow": 16}
    assert verdict({"a": 16, "b": 16, "slow": 10**9}, norms, {"slow": 0.5}).weights["slow"] == 32


def test_contributors_move_nobodys_bounds_however_many_they_are_and_whatever_they_claim():
    crowd = {f"slow{index}": 0.5 for index in range(9)}
    samples = {"a": 16.0, "b": 16.0} | dict.fromkeys(crowd, 1e9)
    norms = {"a": 1.0, "b": 1.0} | dict.fromkeys(crowd, 15.0)
    together = verdict(samples, norms, crowd)
    assert together.weights["a"] == 16 and together.clips.keys().isdisjoint("ab") and not together.rejected
    assert all(together.weights[sender] == 32 for sender in crowd)
    longer = verdict(samples, norms | dict.fromkeys(crowd, 101.0), crowd)
    assert set(longer.rejected) == set(crowd) and set(longer.weights) == {"a", "b"}


def test_without_a_members_update_no_contributor_is_in():
    alone = decide(
        {"a": 16, "slow": 16},
        [{"a": PartReport(0.0, "late"), "slow": PartReport(1.0)}],
        max_norm_ratio=10.0,
        max_weight_ratio=4.0,
        discounts={"slow": 1.0},
    )
    assert alone.weights == {} and alone.rejected["slow"] == "no member's update to measure it by"
