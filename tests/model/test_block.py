from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from blockswarm.model.block import Block
from blockswarm.model.config import ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import join

CPU = torch.device("cpu")
Weights = Callable[[ModelConfig, int], tuple[np.ndarray, np.ndarray]]


def genesis(config: ModelConfig, *, train: bool = False) -> Block:
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    return Block(config, 1.0, join(config, theta, table, CPU), number=0, train=train)


def test_weights_and_gradients_are_views_of_two_flat_vectors(config: ModelConfig) -> None:
    block = genesis(config, train=True)
    x = torch.randint(0, 256, (2, 8))
    zhat = block.denoise(x, torch.randn(2, 8, config.dim), torch.ones(2))
    torch.autograd.backward(block.logits(zhat, block.table()).square().sum())
    assert block.grad is not None
    first = block.weights["bytes"].grad
    assert first is not None
    assert block.grad.data_ptr() == first.data_ptr()
    assert block.grad.any()
    before = block.weights["table"].clone()
    with torch.no_grad():
        block.flat.add_(1.0)
    torch.testing.assert_close(block.weights["table"], before + 1.0)


def test_an_untrained_block_predicts_uniformly_but_can_learn(config: ModelConfig) -> None:
    block = genesis(config, train=True)
    x = torch.randint(0, 256, (2, 8))
    logits = block.logits(block.denoise(x, None, torch.ones(2)), block.table())
    assert not logits.any()
    torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), x.flatten()))
    assert block.weights["out"].grad is not None
    assert block.weights["out"].grad.any()


def test_a_noisy_target_reaches_its_own_row_and_later_ones_only(config: ModelConfig, weights: Weights) -> None:
    block = Block(config, 1.0, join(config, *weights(config, 0), CPU), number=0)
    x = torch.randint(0, 256, (1, 12))
    z = torch.randn(1, 12, config.dim)
    changed = z.clone()
    changed[0, 7] += 1.0
    plain, moved = (block.denoise(x, noisy, torch.ones(1))[0] for noisy in (z, changed))
    assert torch.equal(plain[:7], moved[:7])
    assert not torch.allclose(plain[7], moved[7])
    reaches_on = not torch.allclose(plain[8:], moved[8:])
    assert reaches_on == (config.kind == "transformer")


def test_every_table_row_has_length_one_where_it_is_used(config: ModelConfig) -> None:
    block = genesis(config)
    with torch.no_grad():
        block.weights["table"].mul_(torch.rand(256, 1) * 10)
    torch.testing.assert_close(block.table().norm(dim=1), torch.ones(256))


def test_the_noise_level_is_told_to_the_block(config: ModelConfig, weights: Weights) -> None:
    block = Block(config, 1.0, join(config, *weights(config, 0), CPU), number=0)
    x = torch.randint(0, 256, (1, 12)).expand(2, 12)
    low, high = block.denoise(x, None, torch.tensor([1.0, 10.0]))
    # c_out alone would make the rows proportional.
    assert F.cosine_similarity(low, high, dim=-1).min() < 0.999


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param({"mlp_window": 4, "previous_bytes": 0}, id="window"),
        pytest.param({"mlp_window": 2, "previous_bytes": 3}, id="previous bytes"),
        pytest.param({"mlp_window": 2, "previous_bytes": 1, "ngram_tables": 3}, id="n-grams"),
    ],
)
def test_only_bytes_within_reach_and_attention_matter(tables: dict[str, int], weights: Weights) -> None:
    config = ModelConfig(kind="mlp", dim=16, blocks=1, layers=1, heads=1, context=20, **tables)
    block = Block(config, 1.0, join(config, *weights(config, 0), CPU), number=0)
    x = torch.arange(20)[None]
    changed = x.clone()
    changed[0, 10] += 100
    rows = (block.denoise(x, None, torch.ones(1)) != block.denoise(changed, None, torch.ones(1))).any(-1)[0]
    assert rows.nonzero().flatten().tolist() == [10, 11, 12, 13]


def test_a_wrong_buffer_and_a_long_window_are_refused(config: ModelConfig) -> None:
    with pytest.raises(ModelError, match="block buffer"):
        Block(config, 1.0, torch.zeros(10), number=0)
    with pytest.raises(ModelError, match="longer than the model's context 24"):
        genesis(config).denoise(torch.zeros(1, 25, dtype=torch.uint8), None, torch.ones(1))
