"""Rounds whose parts travel encoded: the same bytes for everyone, and nothing lost but for a while."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.peer.allreduce import reduce_part
from blockswarm.peer.round import RoundResult
from blockswarm.swarm.codec import FOR_RUNS, decode, encoded_size
from blockswarm.swarm.policy.parts import part_bounds
from tests.peer.wires import Wires

SAMPLES = [16, 32, 48]
BITS = {"none": 32, "fp16": 16, "int8": 8.25, "int4": 4.25}


def updates(wires: Wires) -> list[np.ndarray]:
    """A random update for every replica (seed 0), half of each common to all."""
    rng = np.random.default_rng(0)
    common, *own = (1e-3 * rng.standard_normal(wires.manifest.parameters(0)) for _ in range(1 + len(wires.ids)))
    return [(common + update).astype(np.float32) for update in own]


async def one_round(name: str) -> tuple[Wires, np.ndarray, list[np.ndarray], list[RoundResult]]:
    """A round of three replicas: the world, the parent, the updates and what came of it."""
    wires = Wires(3, compression=name)
    parent, deltas = wires[0].state.values, updates(wires)
    results = await wires.round(deltas, SAMPLES)
    assert [result.failure for result in results] == [""] * 3
    return wires, parent, deltas, results


@pytest.mark.parametrize("name", FOR_RUNS)
async def test_all_commit_one_digest_and_what_its_encoding_lost_is_still_theirs(name: str):
    """The weighted sum of what members count as sent is what the state has gained: encoding takes away twice."""
    _, parent, deltas, results = await one_round(name)
    assert len({result.state.digest for result in results if result.state}) == 1
    gained = results[0].state.values - parent
    sent = sum(count / 96 * result.sent for count, result in zip(SAMPLES, results, strict=True))
    np.testing.assert_allclose(gained, sent, atol=1e-6)
    kept = sum(
        count / 96 * (delta - result.sent) for count, delta, result in zip(SAMPLES, deltas, results, strict=True)
    )
    mean = sum(count / 96 * delta for count, delta in zip(SAMPLES, deltas, strict=True))
    np.testing.assert_allclose(gained + kept, mean, atol=1e-6)


@pytest.mark.parametrize(("name", "error"), [("none", 1e-4), ("fp16", 1e-3), ("int8", 0.01), ("int4", 0.16)])
async def test_one_round_alone_is_as_near_to_the_mean_as_the_encoding_allows(name: str, error: float):
    _, parent, deltas, results = await one_round(name)
    mean = sum(count / 96 * delta for count, delta in zip(SAMPLES, deltas, strict=True))
    assert np.linalg.norm(results[0].state.values - parent - mean) < error * np.linalg.norm(mean)


@pytest.mark.parametrize("name", ["none", "fp16", "int8", "int4"])
async def test_bytes_sent_and_saved_stand_in_the_result(name: str):
    """Each of three sends two parts away and its own mean to two: four thirds of a vector."""
    wires, _, _, results = await one_round(name)
    count = wires.manifest.parameters(0)
    bounds = part_bounds(count, [1, 1, 1])
    for result in results:
        begin, end = bounds[result.members.index(wires.ids[results.index(result)])]
        others = [after - before for before, after in bounds if before != begin]
        expected = sum(encoded_size(size, name) for size in others) + 2 * encoded_size(end - begin, name)
        assert result.bytes_sent == expected
        assert result.bytes_sent + result.bytes_saved == 4 * (sum(others) + 2 * (end - begin))
        assert result.bytes_sent == pytest.approx(BITS[name] / 32 * (result.bytes_sent + result.bytes_saved), rel=0.01)


@pytest.mark.parametrize("name", ["int8", "int4"])
async def test_over_several_rounds_the_state_gains_all_that_was_trained(name: str):
    """Every replica carries what was not sent into its next update, as live weights do (`peer/ledger.py`)."""
    wires = Wires(3, compression=name)
    start, deltas = wires[0].state.values, updates(wires)
    pending = [np.zeros_like(delta) for delta in deltas]
    rounds = 4
    for _ in range(rounds):
        offered = [delta + rest for delta, rest in zip(deltas, pending, strict=True)]
        results = await wires.round(offered)
        pending = [offer - result.sent for offer, result in zip(offered, results, strict=True)]
    mean = sum(deltas) / 3
    gained = (wires[0].state.values - start) / rounds
    assert np.linalg.norm(gained - mean) < (0.01 if name == "int8" else 0.15) / rounds * 1.5 * np.linalg.norm(mean)


async def test_alone_nothing_travels_so_nothing_is_lost():
    wires = Wires(1, compression="int4")
    (delta,) = updates(wires)[:1]
    parent = wires[0].state.values
    (result,) = await wires.round([delta])
    np.testing.assert_array_equal(result.sent, delta)
    np.testing.assert_array_equal(result.state.values, parent + delta)


@pytest.mark.parametrize("name", ["int8", "int4"])
async def test_a_part_with_a_scale_that_is_no_number_is_left_out_and_its_sender_named(name: str):
    wires = Wires(3, compression=name)
    bad = wires[1]

    def alter(method: str, body: dict, blob: bytes) -> tuple[dict, bytes]:
        return body, b"\xff\xff" + blob[2:] if method == "round.part" else blob

    bad.alter = alter
    results = await wires.round(updates(wires))
    for result in (results[0], results[2]):
        assert result.failure == "" and result.rejected[bad.identity.peer_id] == "not finite"
    assert results[0].state.digest == results[2].state.digest


def test_a_reducer_with_few_samples_does_not_owe_more_than_an_update_can_hold():
    """Its share of the mean is 1/751; 751 times everybody's rounding would be refused as an absurdly long update."""
    rng = np.random.default_rng(0)
    shares = {name: rng.standard_normal(6400).astype(np.float32) for name in "abcd"}
    weights = {"a": 4.0, "b": 1000.0, "c": 1000.0, "d": 1000.0}
    few, many = (reduce_part(shares, weights, "int4", own_id=name) for name in "ab")
    assert few.data == many.data and few.owed is not None and many.owed is not None
    assert np.linalg.norm(few.owed) < np.linalg.norm(shares["a"])
    # Below the bound it is exact: what is owed, times the own share, is what was lost.
    mean = sum(np.float32(weight / 3004) * shares[name] for name, weight in weights.items())
    lost = mean - decode(many.data, 6400, "int4")
    np.testing.assert_allclose(many.owed * 1000 / 3004, lost, atol=1e-5)


@pytest.mark.parametrize("own_id", ["a", "stranger"])
def test_who_loses_nothing_or_has_no_part_in_the_mean_owes_nothing(own_id: str):
    shares = {"a": np.ones(64, np.float32)}
    compression = "none" if own_id == "a" else "int4"
    assert reduce_part(shares, {"a": 1.0}, compression, own_id=own_id).owed is None
