"""Muon moves matrices by orthogonalised momentum and leaves everything else to AdamW."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout, layer_matrices
from blockswarm.model.learner import BlockLearner
from blockswarm.model.muon import MatrixMomentum, orthogonalise

OPTIMIZERS: tuple[Literal["adamw", "muon"], ...] = ("adamw", "muon")
CONFIG = ModelConfig(dim=16, blocks=1, layers=1, heads=2, context=16)


@pytest.mark.parametrize("shape", [(8, 8), (8, 32), (32, 8)])
def test_singular_values_end_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn((3, *shape), generator=torch.Generator().manual_seed(0)) * 50
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_directions_stay_as_they_were() -> None:
    """U·Vᵀ keeps the singular vectors: a matrix that is orthogonal already only changes its length."""
    rotation, _ = torch.linalg.qr(torch.randn((8, 8), generator=torch.Generator().manual_seed(1)))
    result = orthogonalise(7.0 * rotation[None])[0]
    cosine = (result * rotation).sum() / (result.norm() * rotation.norm())
    assert cosine > 0.999


def test_a_step_has_the_size_of_the_rate_whatever_the_gradient() -> None:
    for scale in (1e-3, 1e3):
        value = torch.zeros((8, 8))
        gradient = scale * torch.randn((8, 8), generator=torch.Generator().manual_seed(2))
        MatrixMomentum([value], [gradient]).step(0.1)
        assert 0.3 * 0.1 < float(torch.linalg.svdvals(value).max()) < 1.3 * 0.1


def repeated() -> Iterator[np.ndarray]:
    while True:
        yield np.arange(2 * 17, dtype=np.uint8).reshape(2, 17)


def learner(optimizer: Literal["adamw", "muon"]) -> BlockLearner:
    recipe = replace(RECIPES["default"], optimizer=optimizer, batch=2, warmup_samples=0)
    theta, table = block_layout(CONFIG).genesis(0, 0), embedding_layout(CONFIG).genesis(0, EMBEDDING)
    return BlockLearner(CONFIG, recipe, 0, theta, table, batches=repeated(), seed=0, threads=1)


def test_only_the_layers_matrices_have_muons_state() -> None:
    """One number a weight for those, two for everything else: less memory than AdamW alone."""
    matrices = sum(entry.size for entry in layer_matrices(CONFIG))
    everything = block_layout(CONFIG).size + embedding_layout(CONFIG).size
    held = learner("muon").memory()["optimizer"]
    assert 4 * (2 * everything - matrices) <= held <= 4 * (2 * everything - matrices) + 100
    assert held < learner("adamw").memory()["optimizer"]


def test_both_optimizers_overfit_a_batch() -> None:
    for optimizer in OPTIMIZERS:
        learning = learner(optimizer)
        first = float(learning.step())
        for _ in range(60):
            last = float(learning.step())
        assert last < first / 4, optimizer


def test_resetting_forgets_the_momentum() -> None:
    """After a foreign state is taken over, nothing of the old direction is left: two learners make the same step."""
    one, other = learner("muon"), learner("muon")
    for _ in range(5):
        one.step()
    one.load(*other.read())
    one.reset_optimizer(0)
    one.set_certified(0)
    other._generator.set_state(one._generator.get_state())
    other._random.bit_generator.state = one._random.bit_generator.state
    one.step(), other.step()
    assert np.array_equal(one.read()[0], other.read()[0])
