"""A block without torch gives the rows that the block itself gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.numpy_block import NumpyBlock
from blockswarm.model.readout import BlockReader

PAPER = RECIPES["paper"]
Weights = Callable[[ModelConfig, int], tuple[np.ndarray, np.ndarray]]


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("pieces", [[24], [1] * 24, [5, 1, 11, 7]])
def test_its_rows_are_those_of_the_block_however_a_window_is_read(
    config: ModelConfig, weights: Weights, text: np.ndarray, number: int, pieces: list[int]
) -> None:
    theta, embedding = weights(config, number)
    block = NumpyBlock(config, PAPER, number, theta, embedding)
    expected = BlockReader(config, PAPER, number, theta, embedding).log_probs(text[:1])[0]
    window, cache = text[0].tobytes(), block.open()
    found = np.concatenate([block.extend(cache, window[cache.length : cache.length + size]) for size in pieces])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_cache_cut_back_is_as_if_the_rest_had_never_been_read(
    config: ModelConfig, weights: Weights, text: np.ndarray
) -> None:
    block = NumpyBlock(config, PAPER, 1, *weights(config, 1))
    window, other = text[0].tobytes(), text[1].tobytes()
    straight = block.extend(block.open(), window[:10] + other[10:])
    cache = block.open()
    block.extend(cache, window)
    cache.truncate(10)
    np.testing.assert_allclose(block.extend(cache, other[10:]), straight[10:], atol=1e-5)


def test_a_window_longer_than_the_context_is_refused(config: ModelConfig, weights: Weights) -> None:
    block = NumpyBlock(config, PAPER, 0, *weights(config, 0))
    cache = block.open()
    block.extend(cache, bytes(config.context))
    for new in (b"x", b""):
        with pytest.raises(ModelError, match="context is 24"):
            block.extend(cache, new)


def test_weights_of_another_shape_are_refused(config: ModelConfig, weights: Weights) -> None:
    theta, embedding = weights(config, 0)
    with pytest.raises(ModelError, match="float32"):
        NumpyBlock(config, PAPER, 0, theta[1:], embedding)
    with pytest.raises(ModelError, match="block 3"):
        NumpyBlock(config, PAPER, 3, theta, embedding)
