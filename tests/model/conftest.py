"""Small models for these tests: quick to run, and with no weight left at zero where that would hide a fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings

from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, Float32, block_layout, embedding_layout

torch.set_num_threads(1)
settings.register_profile("busy machine", deadline=None)  # an example that takes long there is no failure
settings.load_profile("busy machine")

Weights = Callable[[ModelConfig, int], tuple[Float32, Float32]]


@pytest.fixture(params=["transformer", "mlp"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """A small model of each kind."""
    shape = {"dim": 32, "blocks": 3, "layers": 2, "heads": 2, "context": 24, "mlp_window": 6}
    return ModelConfig(kind=request.param, **shape, ngram_tables=2, ngram_rows=50, ngram_width=4)


@pytest.fixture
def weights() -> Weights:
    """Makes (θ, embedding) of a block as if trained: genesis plus noise, so that z and every layer matter."""

    def make(config: ModelConfig, block: int) -> tuple[Float32, Float32]:
        theta = block_layout(config).genesis(7, block)
        noise = np.random.default_rng(block).standard_normal(theta.size)
        embedding = embedding_layout(config).genesis(7, EMBEDDING)
        return theta + (0.05 * noise).astype(np.float32), embedding

    return make


@pytest.fixture
def text() -> np.ndarray:
    """Four different windows of bytes, uint8 [4, 24]."""
    return np.random.default_rng(1).integers(0, 256, (4, 24), dtype=np.uint8)
