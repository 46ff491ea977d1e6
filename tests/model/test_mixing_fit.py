from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.mixing import normalise_log_probs
from blockswarm.model.mixing_fit import fit_mixture
from tests.model.reference import mix_with

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
    assert cross_entropy(mix_with(blocks, ngram, fit.weight), targets) == pytest.approx(fit.nats_per_byte, abs=1e-6)
    for weight in np.linspace(0, 1, 21):
        assert fit.nats_per_byte <= cross_entropy(mix_with(blocks, ngram, weight), targets) + 1e-6


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


def test_fits_end_where_one_of_the_two_is_all() -> None:
    blocks, _, targets = experts(5, 0.0, 0.0)
    misled = normalise_log_probs(-blocks.astype(np.float64))
    assert fit_mixture(misled, blocks, targets).weight == 1.0
    fit = fit_mixture(blocks, misled, targets)
    assert fit.weight == 0.0
    assert fit.nats_per_byte == pytest.approx(cross_entropy(blocks, targets), abs=1e-6)


def test_experts_that_agree_may_be_mixed_in_any_way() -> None:
    blocks, _, targets = experts(6, 1.0, 0.0)
    fit = fit_mixture(blocks, blocks, targets)
    assert 0.0 <= fit.weight <= 1.0
    assert fit.nats_per_byte == pytest.approx(cross_entropy(blocks, targets), abs=1e-6)


def test_windows_fit_as_well_as_rows_and_always_the_same() -> None:
    blocks, ngram, targets = experts(3, 1.0, 1.0)
    flat = fit_mixture(blocks, ngram, targets)
    shape = (6, 100)
    windows = [rows.reshape(*shape, 256) for rows in (blocks, ngram)]
    assert fit_mixture(*windows, targets.reshape(shape)) == flat


def test_what_cannot_be_fitted_is_refused() -> None:
    blocks, ngram, targets = experts(4, 1.0, 1.0)
    with pytest.raises(ModelError, match=r"rows of shape \[599, 256\] do not fit \[600\] targets"):
        fit_mixture(blocks, ngram[1:], targets)
    with pytest.raises(ModelError, match="no held-out rows"):
        fit_mixture(blocks[:0], ngram[:0], targets[:0])
    with pytest.raises(ModelError, match="int64, expected uint8"):
        fit_mixture(blocks, ngram, targets.astype(np.int64))
    blocks[3, 5] = -np.inf
    with pytest.raises(ModelError, match="not finite"):
        fit_mixture(blocks, ngram, targets)
