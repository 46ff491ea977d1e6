"""A whole model in one process gives what its blocks give one by one."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.model.config import ModelConfig, Recipe
from blockswarm.model.layout import EMBEDDING, layout_of
from blockswarm.model.mixing import VETO_FLOOR, mix_log_probs, sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.model.whole import WholeModel
from blockswarm.model.windows import window_start
from tests.model.reference import next_byte_log_probs

RECIPE = Recipe(sigma_data=1.0)
TEXT = np.random.default_rng(2).integers(0, 256, 150, dtype=np.uint8)
WINDOWS = np.stack([TEXT[:24], TEXT[50:74]])
STARTS = np.array([0, 50])


@pytest.fixture(params=["transformer", "mlp"])
def parts(request: pytest.FixtureRequest) -> tuple[WholeModel, list[BlockReader]]:
    """A model of three blocks, whole and as single readers."""
    config = ModelConfig(kind=request.param, dim=16, blocks=3, layers=1, heads=2, context=24)
    states = {}
    for subject in (EMBEDDING, 0, 1, 2):
        noise = np.random.default_rng(subject + 1).standard_normal(layout_of(config, subject).size)
        states[subject] = layout_of(config, subject).genesis(0, subject) + (0.1 * noise).astype(np.float32)
    blocks = [states[block] for block in range(3)]
    readers = [BlockReader(config, RECIPE, block, blocks[block], states[EMBEDDING]) for block in range(3)]
    return WholeModel(config, RECIPE, blocks, states[EMBEDDING], device="cpu"), readers


Parts = tuple[WholeModel, list[BlockReader]]


def test_parallel_is_the_mean_of_the_blocks(parts: Parts) -> None:
    model, readers = parts
    rows = model.predictor("parallel")(WINDOWS, STARTS)
    np.testing.assert_allclose(rows, mix_log_probs([reader.log_probs(WINDOWS) for reader in readers]), atol=1e-6)


def test_sweep_goes_through_the_blocks_from_the_noise_of_each_place_in_the_text(parts: Parts) -> None:
    model, readers = parts
    rows = model.predictor("sweep", 7)(WINDOWS, STARTS)
    for index, start in enumerate((0, 50)):
        z = sweep_noise(7, start, 24, 16)[None]
        for reader in readers:
            expected, z = reader.sweep_step(WINDOWS[index : index + 1], z)
        np.testing.assert_allclose(rows[index], expected[0], atol=1e-5)
    assert not np.allclose(rows, model.predictor("sweep", 8)(WINDOWS, STARTS))


def test_no_block_has_a_veto(parts: Parts) -> None:
    model, readers = parts
    for reader in readers:
        reader._block.weights["log_scale"].fill_(6.0)
    for readout in ("parallel", "sweep"):
        model._readers = readers
        rows = model.predictor(readout)(WINDOWS, STARTS)
        assert rows.min() >= VETO_FLOOR - 10.0  # the mean is renormalised after the blocks were floored


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_one_byte_after_another_is_the_same_as_all_at_once(parts: Parts, readout: str) -> None:
    """Also where the window jumps, and where a text ends and another begins."""
    model, _ = parts
    targets = next_byte_log_probs(model.predictor(readout, 3), TEXT, 24)
    predict = model.next_byte_predictor(readout, 3)
    for text in (TEXT[:90], TEXT[:40]):
        for length in range(1, len(text)):
            start = window_start(length - 1, 24)
            row = predict(text[start:length], start)
            assert row[text[length]] == pytest.approx(targets[length - 1], abs=2e-5)
