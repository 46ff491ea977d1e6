"""Means that a few wrong updates cannot drag far away."""

from __future__ import annotations

import hashlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.policy.robust import (
    CENTERINGS,
    Robust,
    growth_of,
    method_for,
    own_share,
    robust_mean,
    squared_length,
    trimmed_each_side,
)

METHODS = get_args(Robust)
BITS = [("none", "655eef16e888"), ("clip", "e805ca4c32b1"), ("trimmed", "cbdc8dc3efd2"), ("centered", "60dc8877b401")]


def group(count: int, size: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
    """Updates that share a direction, as those of replicas do."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    return {f"p{n}": (common + rng.standard_normal(size)).astype(np.float32) for n in range(count)}


def even(shares: dict[str, np.ndarray]) -> dict[str, float]:
    return dict.fromkeys(shares, 16.0)


def mean_of(shares: dict[str, np.ndarray], method: Robust, weights: dict[str, float] | None = None) -> np.ndarray:
    return robust_mean(shares, weights or even(shares), {}, method)[0]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_small_groups_are_clipped_because_outliers_cannot_be_told_from_others():
    assert [method_for("trimmed", count) for count in (1, 2, 3, 4)] == ["clip", "clip", "clip", "trimmed"]
    assert method_for("centered", 3) == "clip" and method_for("centered", 4) == "centered"
    assert method_for("none", 2) == "none" and method_for("clip", 9) == "clip"


def test_the_plain_mean_weighs_and_clips():
    shares = {"a": np.full(3, 1, np.float32), "b": np.full(3, 5, np.float32)}
    assert mean_of(shares, "none", {"a": 3.0, "b": 1.0}) == pytest.approx([2.0] * 3)
    mean, _ = robust_mean(shares, {"a": 3.0, "b": 1.0}, {"b": 0.2}, "clip")
    assert mean == pytest.approx([1.0] * 3)


def test_the_trimmed_mean_leaves_out_a_quarter_at_either_end_of_every_coordinate():
    assert [trimmed_each_side(count) for count in (4, 7, 8, 16)] == [1, 1, 2, 4]
    shares = {
        name: np.array(row, np.float32) for name, row in zip("abcd", [[9, 1], [2, 2], [4, 90], [-7, 4]], strict=True)
    }
    np.testing.assert_array_equal(mean_of(shares, "trimmed"), [3, 3])
    assert mean_of(shares, "trimmed", {"a": 1.0, "b": 1.0, "c": 64.0, "d": 1.0}) == pytest.approx([3, 3])


@pytest.mark.parametrize("method", ["trimmed", "centered"])
@pytest.mark.parametrize("honest", [3, 6, 12])
def test_a_fifth_of_liars_within_the_norm_bound_moves_the_mean_little(method: Robust, honest: int):
    """Each sends the honest direction backwards, four times as long: the norm check alone lets that through."""
    shares = group(honest)
    truth = mean_of(shares, "none")
    liars = {f"z{n}": (-4 * truth).astype(np.float32) for n in range(max(1, honest // 4))}
    everyone = shares | liars
    assert distance(mean_of(everyone, method), truth) < 0.45
    assert distance(mean_of(everyone, "none"), truth) > 0.7


@pytest.mark.parametrize("method", ["trimmed", "centered"])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_without_liars_it_is_near_the_plain_mean(method: Robust, count: int):
    shares = group(count)
    assert distance(mean_of(shares, method), mean_of(shares, "none")) < 0.25


def test_centered_clipping_names_whom_it_shortens_by_more_than_half():
    shares = group(7) | {"z": np.full(2000, 30, np.float32)}
    mean, shortened = robust_mean(shares, even(shares), {}, "centered")
    assert list(shortened) == ["z"] and shortened["z"] < 0.1
    assert np.linalg.norm(mean) < 3 * np.linalg.norm(mean_of(group(7), "none"))
    assert CENTERINGS >= 1


def test_equal_updates_give_themselves_whatever_the_method():
    shares = dict.fromkeys("abcde", group(1)["p0"])
    for method in METHODS:
        np.testing.assert_allclose(mean_of(shares, method), shares["a"], rtol=1e-5)
    zeros = dict.fromkeys("abcd", np.zeros(5, np.float32))
    assert not mean_of(zeros, "centered").any()


@pytest.mark.parametrize("method", METHODS)
def test_parts_without_values_and_without_senders(method: Robust):
    assert mean_of(dict.fromkeys("abcd", np.zeros(0, np.float32)), method).shape == (0,)
    with pytest.raises(ValueError, match="without accepted senders"):
        robust_mean({}, {}, {}, method)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(-100, 100, width=32), min_size=width, max_size=width), min_size=4, max_size=9
        )
    ),
    data=st.data(),
)
def test_no_mean_is_longer_than_its_longest_term_allows(method: Robust, rows: list[list[float]], data: st.DataObject):
    shares = {f"p{n}": np.array(row, dtype=np.float32) for n, row in enumerate(rows)}
    weights = {name: data.draw(st.floats(1, 64)) for name in shares}
    mean = mean_of(shares, method, weights)
    longest = max(squared_length(share) for share in shares.values())
    assert squared_length(mean) <= 1.001 * growth_of(method) * longest + 1e-6


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 65_536, 65_537, 200_003])
def test_a_squared_length_is_summed_in_float64(size: int):
    values = (1e3 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    assert squared_length(values) == pytest.approx(float(np.sum(values.astype(np.float64) ** 2)), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_shares_of_the_mean_add_up_to_one(method: Robust):
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 2.0}
    assert sum(own_share(weights, sender, method) for sender in weights) == pytest.approx(1)


@pytest.mark.parametrize(("method", "expected"), BITS)
def test_the_bits_are_the_same_on_every_machine(method: Robust, expected: str):
    bits = (np.random.Philox(5).random_raw(5 * 70_000).astype(np.int64) >> 40).astype(np.float32) * np.float32(2**-40)
    shares = {f"p{n}": row for n, row in enumerate(bits.reshape(5, -1))}
    clips = {"p1": 0.75} if method == "clip" else {}
    mean, _ = robust_mean(shares, dict(zip(shares, [3.0, 5.0, 7.0, 7.0, 1.0], strict=True)), clips, method)
    assert hashlib.sha256(mean.astype("<f4").tobytes()).hexdigest()[:12] == expected
