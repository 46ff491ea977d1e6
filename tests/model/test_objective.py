from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from blockswarm.model.block import Block
from blockswarm.model.config import ModelConfig
from blockswarm.model.learner import join
from blockswarm.model.objective import block_loss

CPU = torch.device("cpu")
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Weights = Callable[[ModelConfig, int], tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def block(config: ModelConfig, weights: Weights) -> Block:
    return Block(config, 0.5, join(config, *weights(config, 0), CPU), number=0)


@pytest.fixture
def batch(config: ModelConfig) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (3, 10), generator=generator)
    y = torch.randint(0, 256, (3, 10), generator=generator)
    return x, y, torch.tensor([1.0, 2.0, 10.0]), torch.randn(3, 10, config.dim, generator=generator)


def test_the_loss_is_the_published_one_written_out_sequence_by_sequence(block: Block, batch: Batch) -> None:
    x, y, sigma, noise = batch
    table = F.normalize(block.weights["table"], dim=1)
    terms = []
    for i, weight in enumerate([5.0, 4.25, 4.01]):
        z = table[y[i]] + sigma[i] * noise[i]
        zhat = block.denoise(x[i : i + 1], z[None], sigma[i : i + 1])[0]
        logits = (zhat @ table.T) * block.weights["log_scale"].exp() / 0.5**2
        terms.append(weight * F.cross_entropy(logits, y[i]))
    loss = block_loss(block, x, y, sigma, noise)
    torch.testing.assert_close(loss.weighted, torch.stack(terms).mean())


def test_a_sequence_is_weighted_by_its_own_noise_level_only(block: Block, batch: Batch) -> None:
    # The fault this guards against: loss [n] times weight [n, 1] broadcasts to [n, n], the product of the two means.
    x, y, sigma, noise = batch
    loss = block_loss(block, x, y, sigma, noise)
    assert loss.weighted.shape == loss.cross_entropy.shape == ()
    alone = [block_loss(block, x[i : i + 1], y[i : i + 1], sigma[i : i + 1], noise[i : i + 1]) for i in range(3)]
    weighted = sum(float(one.weighted) for one in alone) / 3
    product = float(loss.cross_entropy) * (5.0 + 4.25 + 4.01) / 3
    assert float(loss.weighted) == pytest.approx(weighted, rel=1e-5)
    assert float(loss.weighted) != pytest.approx(product, rel=1e-5)


def test_a_sequence_with_z_zero_sees_neither_target_nor_noise(block: Block, batch: Batch) -> None:
    x, y, sigma, noise = batch
    hidden = block_loss(block, x, y, sigma, noise, torch.tensor([True, True, True]))
    torch.testing.assert_close(hidden.weighted, block_loss(block, x, y, sigma, None).weighted)
    some = block_loss(block, x, y, sigma, noise, torch.tensor([True, False, False]))
    assert float(some.weighted) != pytest.approx(float(hidden.weighted), rel=1e-6)


def test_stretching_the_stored_table_changes_nothing(block: Block, batch: Batch) -> None:
    before = block_loss(block, *batch).weighted
    with torch.no_grad():
        block.weights["table"].mul_(3.0)
    torch.testing.assert_close(block_loss(block, *batch).weighted, before)


def test_at_low_noise_the_evidence_alone_predicts_the_target(config: ModelConfig) -> None:
    # With an untrained F, ẑ is c_skip · z; at σ = 0.05 that is the target itself. The classifier is tied to the table.
    from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout

    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    block = Block(config, 0.5, join(config, theta, table, CPU), number=0)
    x, y = torch.randint(0, 256, (2, 4, 20))
    sigma = torch.full((4,), 0.05)
    loss = block_loss(block, x, y, sigma, torch.randn(4, 20, config.dim))
    assert float(loss.cross_entropy) < math.log(256) - 1.0
