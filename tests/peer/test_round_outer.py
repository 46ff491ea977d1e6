"""Rounds with an outer optimizer: its momentum is state, so all who commit hold the same of it too."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blockswarm.peer.round import RoundResult
from blockswarm.peer.states import State
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.policy.outer import outer_step
from tests.peer.wires import Wires

NESTEROV = {"outer": "nesterov", "outer_momentum": 0.5, "outer_rate": 0.7, "compression": "none"}


def updates(wires: Wires, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    size = wires.manifest.parameters(wires.subject)
    return [(1e-3 * rng.standard_normal(size)).astype(np.float32) for _ in wires.ids]


def one_state(results: list[RoundResult]) -> State:
    """What all of them committed."""
    assert [result.failure for result in results] == [""] * len(results)
    states = [result.state for result in results if result.state]
    assert len({state.digest for state in states}) == 1 and len(states) == len(results)
    return states[0]


async def test_every_commit_takes_a_step_with_momentum_along_the_mean():
    wires = Wires(3, **NESTEROV)
    values, velocity = wires[0].state.values.copy(), np.zeros(wires.manifest.parameters(0), dtype=np.float32)
    for number in range(3):
        deltas = updates(wires, number)
        state = one_state(await wires.round(deltas))
        step, velocity = outer_step(sum(deltas) / np.float32(3), velocity, momentum=0.5, rate=0.7)
        values += step
        np.testing.assert_allclose(state.values, values, atol=1e-6)
        np.testing.assert_allclose(state.momentum, velocity, atol=1e-6)


async def test_with_int4_on_the_wire_all_hold_the_same_bits_of_both():
    wires = Wires(3, **NESTEROV | {"compression": "int4"})
    for number in range(2):
        state = one_state(await wires.round(updates(wires, number)))
    assert state.digest == State.make(0, 2, state.values, samples=0, momentum=state.momentum).digest
    assert state.digest != State.make(0, 2, state.values, samples=0).digest


async def test_a_part_that_was_left_out_keeps_its_values_and_its_momentum():
    wires = Wires(3, **NESTEROV)
    one_state(await wires.round(updates(wires, 0)))
    parent = wires[0].state
    number = wires.next_round()
    order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    victim = wires.replicas[order[1]]
    victim.silent_from = "round.result"
    results = await wires.round(updates(wires, 1), number=number)
    others = [result for replica, result in zip(wires.replicas.values(), results, strict=True) if replica is not victim]
    state = one_state(others)
    same = state.values == parent.values
    kept = state.momentum == parent.momentum
    assert 0.3 < kept.mean() < 0.37
    assert same[kept].all()


async def test_a_replica_whose_momentum_differs_does_not_get_its_digest_certified():
    """It votes alone: the others' quorum has the round, and it keeps its parent until it has caught up."""
    wires = Wires(3, **NESTEROV)
    one_state(await wires.round(updates(wires, 0)))
    odd = wires[2]
    other = dataclasses.replace(odd.state, momentum=odd.state.momentum + np.float32(1))
    odd.state = dataclasses.replace(other, digest=odd.state.digest)  # as if a bit of its memory had flipped
    results = await wires.round(updates(wires, 1))
    one_state(results[:2])
    assert results[2].state is None and "votes" in results[2].failure


async def test_a_round_without_a_commit_leaves_the_momentum_alone():
    wires = Wires(2, **NESTEROV)
    before = wires[0].state
    wires[1].silent_from = "round.part"
    result = (await wires.round(updates(wires, 0)))[0]
    assert result.state is None and wires[0].state is before


async def test_a_lone_replica_steps_with_momentum_too():
    wires = Wires(1, **NESTEROV)
    parent = wires[0].state.values
    (delta,) = updates(wires, 0)
    state = one_state(await wires.round([delta]))
    np.testing.assert_allclose(state.values - parent, 1.05 * delta, atol=1e-6)
    np.testing.assert_array_equal(state.momentum, delta)


@pytest.mark.parametrize("subject", [0, -1])
def test_the_genesis_has_a_momentum_of_zeros_that_its_digest_covers(subject: int):
    wires = Wires(1, subject=subject, **NESTEROV)
    genesis = wires[0].state
    assert not genesis.momentum.any() and genesis.digest == wires.manifest.genesis_digest(subject)
    plain = Wires(1, subject=subject)
    assert plain[0].state.momentum is None and plain[0].state.digest != genesis.digest
