"""Rounds with a member whose update is whole and finite, and wrong."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.peer.round import RoundResult
from tests.peer.wires import Wires


def updates(wires: Wires) -> list[np.ndarray]:
    """An update for every replica (seed 0), half of each common to all."""
    rng = np.random.default_rng(0)
    common, *own = (1e-3 * rng.standard_normal(wires.manifest.parameters(0)) for _ in range(1 + len(wires.ids)))
    return [(common + update).astype(np.float32) for update in own]


def gained(results: list[RoundResult], parent: np.ndarray) -> np.ndarray:
    """What the state all of them committed has more than its parent."""
    assert [result.failure for result in results] == [""] * len(results)
    assert len({result.state.digest for result in results if result.state}) == 1
    return results[0].state.values - parent


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("robust", ["clip", "trimmed", "centered"])
async def test_in_a_small_group_a_long_update_is_shortened_and_its_sender_named(robust: str):
    wires = Wires(3, robust=robust, clip_ratio=2.0, compression="none")
    deltas, parent = updates(wires), wires[0].state.values
    long = wires.ids[1]
    deltas[1] = 8 * deltas[1]
    results = await wires.round(deltas)
    for result in results:
        assert list(result.clipped) == [long] and not result.rejected
        assert result.clipped[long] == pytest.approx(0.25, rel=0.05)
    shortened = [deltas[0], results[0].clipped[long] * deltas[1], deltas[2]]
    np.testing.assert_allclose(gained(results, parent), sum(shortened) / 3, atol=1e-6)


async def test_what_was_cut_off_an_update_is_not_carried_into_the_next_one():
    wires = Wires(3, robust="clip", compression="none")
    deltas = updates(wires)
    deltas[1] = 8 * deltas[1]
    results = await wires.round(deltas)
    np.testing.assert_array_equal(results[1].sent, deltas[1])


@pytest.mark.parametrize(("robust", "moved"), [("trimmed", 0.45), ("centered", 0.45)])
async def test_one_of_five_that_pulls_backwards_moves_the_state_little(robust: str, moved: float):
    wires = Wires(5, robust=robust, compression="fp16")
    deltas, parent = updates(wires), wires[0].state.values
    truth = sum(deltas[:4]) / 4
    deltas[4] = (-4 * truth).astype(np.float32)
    results = await wires.round(deltas)
    assert distance(gained(results, parent), truth) < moved
    if robust == "centered":
        assert wires.ids[4] in results[0].clipped


@pytest.mark.parametrize("robust", ["clip", "trimmed", "centered"])
async def test_honest_replicas_are_neither_named_nor_refused_and_lose_little(robust: str):
    wires = Wires(5, robust=robust, compression="int4")
    deltas, parent = updates(wires), wires[0].state.values
    results = await wires.round(deltas)
    assert all(not result.clipped and not result.rejected for result in results)
    assert distance(gained(results, parent), sum(deltas) / 5) < 0.3


async def test_without_it_the_plain_mean_takes_what_the_norm_bound_allows():
    wires = Wires(3, robust="none", compression="none")
    deltas, parent = updates(wires), wires[0].state.values
    deltas[1] = 8 * deltas[1]
    results = await wires.round(deltas)
    assert all(not result.clipped for result in results)
    np.testing.assert_allclose(gained(results, parent), sum(deltas) / 3, atol=1e-6)
