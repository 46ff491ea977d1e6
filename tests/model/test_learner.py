from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockswarm.model.config import RECIPES, ModelConfig, Recipe
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import BlockLearner, pick_device
from blockswarm.model.partition import interval, readout_sigma
from blockswarm.model.readout import BlockReader

LEARNED = {"cpu": 0.3} | ({"cuda": 0.5} if torch.cuda.is_available() else {})
"""Device to the cross-entropy under which a batch counts as learned; a GPU computes in bf16, with half the digits."""

RECIPE = replace(RECIPES["default"], batch=4, warmup_samples=0)


def make(config: ModelConfig, recipe: Recipe = RECIPE, *, seed: int = 0, block: int = 0) -> BlockLearner:
    def batches() -> Iterator[np.ndarray]:
        random = np.random.default_rng(seed)
        while True:
            yield random.integers(97, 105, (recipe.batch, config.context + 1), dtype=np.uint8)

    theta, table = block_layout(config).genesis(0, block), embedding_layout(config).genesis(0, EMBEDDING)
    return BlockLearner(config, recipe, block, theta, table, batches=batches(), seed=seed, device="cpu", threads=1)


@pytest.mark.parametrize("device", LEARNED)
@pytest.mark.parametrize("recipe", [RECIPES["default"], RECIPES["paper"]], ids=["default", "paper"])
def test_one_batch_can_be_overfitted(config: ModelConfig, recipe: Recipe, device: str) -> None:
    batch = np.random.default_rng(0).integers(0, 256, (4, config.context + 1), dtype=np.uint8)
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    learner = BlockLearner(
        config, replace(recipe, batch=4), 0, theta, table, batches=itertools.repeat(batch), seed=0, device=device
    )
    assert learner.evaluate(batch) == pytest.approx(np.log(256), abs=1e-5)
    for _ in range(150):
        learner.step()
    assert learner.evaluate(batch) < LEARNED[device]


def test_the_same_seed_trains_to_the_same_bytes_and_another_does_not(config: ModelConfig) -> None:
    learners = [make(config, seed=seed) for seed in (1, 1, 2)]
    losses = [[float(learner.step()) for _ in range(3)] for learner in learners]
    assert losses[0] == losses[1] != losses[2]
    (a, ea), (b, eb), (c, ec) = (learner.read() for learner in learners)
    assert np.array_equal(a, b)
    assert np.array_equal(ea, eb)
    assert not np.array_equal(a, c)
    assert not np.array_equal(ea, ec)


def test_read_gives_copies_and_load_puts_them_back(config: ModelConfig) -> None:
    learner = make(config)
    start = learner.read()
    learner.step()
    after = learner.read()
    assert not np.array_equal(start[0], after[0])
    assert not np.array_equal(start[1], after[1])
    learner.load(*start)
    assert all(np.array_equal(x, y) for x, y in zip(learner.read(), start, strict=True))
    learner.load(None, after[1])
    assert np.array_equal(learner.read()[0], start[0])
    assert np.array_equal(learner.read()[1], after[1])


def test_corrections_are_added_in_place(config: ModelConfig) -> None:
    learner = make(config)
    theta, table = learner.read()
    correction = np.full(theta.size, 0.5, np.float32)
    correction.flags.writeable = False  # as arrays over received bytes are
    learner.add(correction, None)
    np.testing.assert_array_equal(learner.read()[0], theta + np.float32(0.5))
    np.testing.assert_array_equal(learner.read()[1], table)
    with pytest.raises(ModelError, match="correction"):
        learner.add(None, np.zeros(3, np.float32))


def test_the_optimiser_goes_on_after_a_correction(config: ModelConfig) -> None:
    # Adding zero must not disturb anything: the bytes after further steps are those of an undisturbed learner.
    plain, corrected = make(config), make(config)
    for learner in (plain, corrected):
        learner.step()
    corrected.add(np.zeros(plain.read()[0].size, np.float32), np.zeros(plain.read()[1].size, np.float32))
    for learner in (plain, corrected):
        learner.step()
    assert np.array_equal(plain.read()[0], corrected.read()[0])


def test_the_rate_follows_certified_samples_and_local_steps_since(config: ModelConfig) -> None:
    learner = make(config, replace(RECIPE, warmup_samples=100, learning_rate=1e-3))
    assert learner.learning_rate == pytest.approx(1e-3 * 4 / 100)
    learner.step()
    assert learner.learning_rate == pytest.approx(1e-3 * 8 / 100)
    learner.set_certified(50)
    assert learner.learning_rate == pytest.approx(1e-3 * 54 / 100)
    learner.set_certified(1_000)
    assert learner.learning_rate == pytest.approx(1e-3)


def test_a_reset_forgets_the_averages_and_ramps_up(config: ModelConfig) -> None:
    learner = make(config)
    learner.step()
    learner.reset_optimizer(9)
    peak = RECIPE.peak_rate(config.dim)
    rates = []
    for _ in range(12):
        rates.append(learner.learning_rate)
        learner.step()
    assert rates[:3] == pytest.approx([0.1 * peak, 0.2 * peak, 0.3 * peak])
    assert rates[9:] == pytest.approx([peak] * 3)


def test_the_first_step_moves_each_weight_by_at_most_the_rate(config: ModelConfig) -> None:
    learner = make(config, replace(RECIPE, learning_rate=1e-3))
    before = learner.read()
    learner.step()
    for old, new in zip(before, learner.read(), strict=True):
        assert 0 < np.abs(new - old).max() <= 1e-3 * 1.01


@pytest.mark.parametrize("block", [0, 1, 2])
def test_noise_levels_come_from_the_blocks_own_interval(config: ModelConfig, block: int) -> None:
    learner = make(config, replace(RECIPE, z_zero_share=0.5), block=block)
    low, high = interval(RECIPE, 3, block)
    zeros = 0
    for _ in range(50):
        sigma, z_zero = learner._draw_levels(4)
        assert np.all((sigma >= np.float32(low)) & (sigma <= np.float32(high)))
        assert np.all(sigma[z_zero] == np.float32(readout_sigma(RECIPE, 3, block)))
        zeros += z_zero.sum()
    assert zeros == 100


def test_the_share_of_sequences_with_z_zero_holds_on_average(config: ModelConfig) -> None:
    learner = make(config, replace(RECIPE, z_zero_share=0.3))
    share = np.mean([learner._draw_levels(4)[1].mean() for _ in range(1000)])
    assert share == pytest.approx(0.3, abs=0.02)
    assert not make(config, replace(RECIPE, z_zero_share=0.0))._draw_levels(1000)[1].any()
    assert make(config, replace(RECIPE, z_zero_share=1.0))._draw_levels(1000)[1].all()


def test_evaluation_is_the_cross_entropy_of_the_reader(config: ModelConfig) -> None:
    learner = make(config, block=1)
    for _ in range(3):
        learner.step()
    windows = np.random.default_rng(0).integers(97, 105, (40, config.context + 1), dtype=np.uint8)
    logp = BlockReader(config, RECIPE, 1, *learner.read()).log_probs(windows[:, :-1])
    expected = -np.take_along_axis(logp, windows[:, 1:, None].astype(int), axis=2).mean()
    assert learner.evaluate(windows) == pytest.approx(float(expected), rel=1e-6)


def test_memory_is_sixteen_bytes_a_value(config: ModelConfig) -> None:
    learner = make(config)
    learner.step()
    values = sum(part.size for part in learner.read())
    memory = learner.memory()
    assert memory["parameters"] == memory["gradients"] == 4 * values
    assert memory["optimizer"] - 8 * values < 100  # its step counter


def test_a_long_gradient_is_cut_to_the_limit(config: ModelConfig) -> None:
    # AdamW alone does not see the scale of a gradient; its second average does, after a change of scale.
    learner = make(config, replace(RECIPE, grad_clip=1e-3))
    learner.step()
    assert float(torch.linalg.vector_norm(learner._gradient)) <= 1e-3 * 1.001


def test_wrong_arrays_blocks_and_devices_are_refused(config: ModelConfig) -> None:
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    bad: tuple[tuple[int, Any, Any], ...] = (
        (0, theta[:-1], table),
        (0, theta, table.astype(np.float64)),
        (3, theta, table),
    )
    for block, wrong_theta, wrong_table in bad:
        with pytest.raises(ModelError):
            BlockLearner(config, RECIPE, block, wrong_theta, wrong_table, batches=iter([]), seed=0, device="cpu")
    with pytest.raises(ModelError, match="device 'toaster' cannot be used"):
        pick_device("toaster")


@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"compiled": True}], ids=["bf16", "compiled"])
@pytest.mark.parametrize("config", ["transformer"], indirect=True)  # one kind shows it, and compiling takes a while
def test_faster_ways_to_train_learn_the_same(config: ModelConfig, how: dict[str, Any]) -> None:
    """Half the digits in matrix products, or fused kernels: the same losses but for rounding."""
    if how.get("compiled") and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    batch = np.random.default_rng(0).integers(97, 105, (4, config.context + 1), dtype=np.uint8)
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)

    def losses(**more: Any) -> list[float]:
        again = itertools.repeat(batch)
        learner = BlockLearner(config, RECIPE, 0, theta, table, batches=again, seed=0, device="cpu", threads=1, **more)
        return [float(learner.step()) for _ in range(8)]

    assert losses(**how) == pytest.approx(losses(), abs=0.02)
