from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.mixing import mix_with, normalise_log_probs
from blockswarm.model.mixing_fit import MAX_SHARPNESS, MAX_WEIGHT, fit_mixture, fit_sharpness

COUNT = 600


def experts(seed: int, left: float, right: float, truth: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two views of what decides a byte, each blurred by noise of its own, and bytes drawn accordingly."""
    random = np.random.default_rng(seed)
    logits = truth * random.standard_normal((COUNT, 256))
    noise = random.gumbel(size=logits.shape)
    blocks = normalise_log_probs(logits + left * random.standard_normal(logits.shape))
    ngram = normalise_log_probs(logits + right * random.standard_normal(logits.shape))
    return blocks, ngram, (logits + noise).argmax(-1).astype(np.uint8)


def cross_entropy(rows: np.ndarray, targets: np.ndarray) -> float:
    return float(-rows.astype(np.float64)[np.arange(len(targets)), targets].mean())


@given(st.integers(0, 99), st.floats(0, 3), st.floats(0, 3))
@settings(max_examples=15)
def test_no_other_weight_is_better(seed: int, left: float, right: float) -> None:
    blocks, ngram, targets = experts(seed, left, right)
    fit = fit_mixture(blocks, ngram, targets)
    assert fit.sharpness == 1.0
    assert cross_entropy(mix_with(blocks, ngram, fit.weight), targets) == pytest.approx(fit.nats_per_byte, abs=1e-6)
    for weight in np.linspace(0, 1, 21):
        assert fit.nats_per_byte <= cross_entropy(mix_with(blocks, ngram, weight), targets) + 1e-6


@given(st.integers(0, 99), st.floats(0, 3), st.floats(0, 3))
@settings(max_examples=15)
def test_no_other_weight_and_sharpness_are_better(seed: int, left: float, right: float) -> None:
    blocks, ngram, targets = experts(seed, left, right)
    fit = fit_mixture(blocks, ngram, targets, with_sharpness=True)
    mixed = mix_with(blocks, ngram, fit.weight, fit.sharpness)
    assert cross_entropy(mixed, targets) == pytest.approx(fit.nats_per_byte, abs=1e-6)
    assert fit.nats_per_byte <= fit_mixture(blocks, ngram, targets).nats_per_byte + 1e-6
    for weight in (0.0, 0.2, 0.5, 0.8, MAX_WEIGHT):
        for sharpness in (0.2, 0.5, 1.0, 2.0):
            assert fit.nats_per_byte <= cross_entropy(mix_with(blocks, ngram, weight, sharpness), targets) + 1e-6


def test_an_expert_that_knows_nothing_gets_no_weight() -> None:
    blocks, _, targets = experts(0, 0.0, 0.0)
    nothing = np.full_like(blocks, -np.log(256))
    assert fit_mixture(blocks, nothing, targets).weight == pytest.approx(0.0, abs=0.06)
    assert fit_mixture(nothing, blocks, targets).weight == pytest.approx(1.0, abs=0.06)


def test_the_better_expert_gets_more_weight() -> None:
    blocks, ngram, targets = experts(1, 2.0, 0.7)
    fit = fit_mixture(blocks, ngram, targets)
    assert fit.weight > 0.6
    assert fit.nats_per_byte < min(cross_entropy(blocks, targets), cross_entropy(ngram, targets))


def test_blocks_that_are_too_shy_or_too_sure_are_corrected() -> None:
    blocks, _, targets = experts(2, 0.0, 0.0)
    for factor in (0.5, 3.0):
        bent = normalise_log_probs(factor * blocks.astype(np.float64))
        fit = fit_sharpness(bent, targets)
        assert fit.weight == 0.0
        assert fit.sharpness == pytest.approx(1 / factor, rel=0.1)
        assert fit.nats_per_byte < cross_entropy(bent, targets)


def test_fits_stay_within_bounds() -> None:
    certain = normalise_log_probs(np.eye(256, dtype=np.float32) * 0.01)
    assert fit_sharpness(certain, np.arange(256, dtype=np.uint8)).sharpness == MAX_SHARPNESS
    wrong = normalise_log_probs(-np.eye(256, dtype=np.float32))
    fit = fit_sharpness(wrong, np.arange(256, dtype=np.uint8))
    assert fit.sharpness == 0.0
    assert fit.nats_per_byte == pytest.approx(np.log(256))


def test_blocks_that_only_mislead_are_left_out() -> None:
    blocks, _, targets = experts(5, 0.0, 0.0)
    misled = normalise_log_probs(-blocks.astype(np.float64))
    shy = normalise_log_probs(0.5 * blocks.astype(np.float64))
    noisy = np.random.default_rng(0).standard_normal(shy.shape)
    ngram = normalise_log_probs(4 * shy.astype(np.float64) + 4 * noisy)  # much too sure: its weight stays inside
    fit = fit_mixture(misled, ngram, targets, with_sharpness=True)
    assert fit.sharpness == 0.0
    assert 0.0 < fit.weight < MAX_WEIGHT
    mixed = mix_with(misled, ngram, fit.weight, fit.sharpness)
    assert cross_entropy(mixed, targets) == pytest.approx(fit.nats_per_byte, abs=1e-6)


def test_fitting_the_sharpness_too_is_never_worse_than_the_weight_alone() -> None:
    blocks, ngram, targets = experts(0, 1.0, 0.0)  # the n-gram model knows all there is: its weight nears 1
    alone = fit_mixture(blocks, ngram, targets)
    assert alone.weight > MAX_WEIGHT
    assert fit_mixture(blocks, ngram, targets, with_sharpness=True).nats_per_byte <= alone.nats_per_byte


def test_windows_fit_as_well_as_rows_and_always_the_same() -> None:
    blocks, ngram, targets = experts(3, 1.0, 1.0)
    flat = fit_mixture(blocks, ngram, targets, with_sharpness=True)
    shape = (6, 100)
    windows = [rows.reshape(*shape, 256) for rows in (blocks, ngram)]
    assert fit_mixture(*windows, targets.reshape(shape), with_sharpness=True) == flat


def test_what_cannot_be_fitted_is_refused() -> None:
    blocks, ngram, targets = experts(4, 1.0, 1.0)
    with pytest.raises(ModelError, match=r"rows of shape \[599, 256\] do not fit \[600\] targets"):
        fit_mixture(blocks, ngram[1:], targets)
    with pytest.raises(ModelError, match="no held-out rows"):
        fit_sharpness(blocks[:0], targets[:0])
    with pytest.raises(ModelError, match="int64, expected uint8"):
        fit_sharpness(blocks, targets.astype(np.int64))
    blocks[3, 5] = -np.inf
    with pytest.raises(ModelError, match="not finite"):
        fit_mixture(blocks, ngram, targets)
