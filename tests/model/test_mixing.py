from __future__ import annotations

import numpy as np
import pytest

from blockswarm.model.errors import ModelError
from blockswarm.model.mixing import mix_counts, mix_log_probs, normalise_log_probs, sweep_noise


def _rows(seed: int) -> np.ndarray:
    return normalise_log_probs(np.random.default_rng(seed).standard_normal((5, 256)).astype(np.float32))


def test_mixing_is_the_renormalised_mean_of_log_probabilities() -> None:
    a, b = _rows(1), _rows(2)
    geometric = np.sqrt(np.exp(a) * np.exp(b))
    expected = np.log(geometric / geometric.sum(-1, keepdims=True))
    mixed = mix_log_probs([a, b])
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, expected, atol=1e-5)


def test_one_block_alone_mixes_to_itself() -> None:
    np.testing.assert_allclose(mix_log_probs([_rows(3)]), _rows(3), atol=1e-6)


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(ModelError, match="no block"):
        mix_log_probs([])
    with pytest.raises(ModelError, match="shapes"):
        mix_log_probs([_rows(1), _rows(2)[:3]])


@pytest.mark.parametrize("dim", [8, 96, 13])
def test_the_noise_of_a_position_does_not_depend_on_the_chunk(dim: int) -> None:
    whole = sweep_noise(5, 0, 40, dim)
    assert whole.shape == (40, dim)
    pieces = [sweep_noise(5, start, length, dim) for start, length in ((0, 1), (1, 16), (17, 23))]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))


def test_the_noise_is_standard_normal_and_different_for_each_seed() -> None:
    noise = sweep_noise(0, 100, 1000, 96)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.1
    assert not np.array_equal(noise, sweep_noise(1, 100, 1000, 96))


def test_the_noise_is_the_same_on_every_machine() -> None:
    np.testing.assert_allclose(sweep_noise(0, 0, 1, 4)[0], [0.1093107, -0.2630218, 0.3336548, 1.306953], atol=1e-6)


def test_counts_have_their_share_of_the_log_probabilities() -> None:
    blocks, counts = _rows(1), _rows(2)
    mixed = mix_counts(blocks, counts, 0.3)
    expected = np.exp(0.7 * blocks + 0.3 * counts)
    np.testing.assert_allclose(mixed, np.log(expected / expected.sum(-1, keepdims=True)), atol=1e-5)
    np.testing.assert_allclose(mix_counts(blocks, counts, 0.0), blocks, atol=1e-6)
    np.testing.assert_allclose(mix_counts(blocks, counts, 1.0), counts, atol=1e-6)
    with pytest.raises(ModelError, match="cannot mix counts"):
        mix_counts(blocks, counts[:2], 0.3)
