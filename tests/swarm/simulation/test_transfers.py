"""States flow from who holds them to who lacks them, within everybody's line."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.swarm.simulation.peers import BLOCK, FETCHING, PURPOSES
from blockswarm.swarm.simulation.scenario import Scenario, read_scenario
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation
from blockswarm.swarm.simulation.transfers import advance_transfers, kept_states, start_fetching
from blockswarm.swarm.simulation.world import World

STEADY: Scenario = read_scenario({"sessions": {"median_hours": 1e6}})
FIRST: Scenario = read_scenario({"what_if": {"donors": "first"}, "sessions": {"median_hours": 1e6}})


@pytest.fixture
def world(shape: SwarmShape) -> World:
    """Block 0 has one holder, who sends 1 MB/s, and two who lack its state and receive 10 MB/s each."""
    world = Simulation(shape, STEADY, peers=9, hours=1.0).world
    peers = world.peers
    peers.up[:], peers.down[:] = 1e6, 10e6
    peers.block[:] = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    lacking = np.array([1, 2])
    peers.stage[lacking], peers.version[lacking, BLOCK] = FETCHING, -1
    peers.fetching[lacking, BLOCK], peers.left[lacking, BLOCK] = 0, 3e6
    return world


def lacking(world: World) -> np.ndarray:
    return np.flatnonzero(world.peers.fetching[:, BLOCK] >= 0)


def test_one_uplink_is_shared(world: World) -> None:
    rows = lacking(world)
    advance_transfers(world, 0.0, 4.0)
    assert world.peers.left[rows, BLOCK] == pytest.approx([1e6, 1e6])
    advance_transfers(world, 4.0, 8.0)
    assert (world.peers.version[rows, BLOCK] == 0).all()
    assert world.peers.ready[rows] == pytest.approx([9.0, 9.0])  # 6 s, and 3 s for the learner
    sent = world.peers.sent[:, PURPOSES.index("states")]
    assert sent.sum() == pytest.approx(6e6)
    assert (sent > 0).sum() == 1


def test_a_downlink_is_no_wider_than_it_is(world: World) -> None:
    rows = lacking(world)
    world.peers.up[:] = 1e9
    advance_transfers(world, 0.0, 0.1)
    assert world.peers.left[rows, BLOCK] == pytest.approx([2e6, 2e6])


def test_a_state_that_nobody_gives_any_more_is_given_up_for_the_newest(world: World, shape: SwarmShape) -> None:
    rows = lacking(world)
    advance_transfers(world, 0.0, 1.0)
    holder = world.rows_of(0, 0, world.peers.alive(0.0))[0]
    world.heads.version[0, 0] = world.peers.version[holder, BLOCK] = 7  # it keeps six states
    everybody_is_told = np.zeros((world.peers.count, 2), dtype=bool)
    start_fetching(world, shape.times(1), np.full_like(world.heads.samples, 0.0), everybody_is_told)
    assert world.peers.fetching[rows, BLOCK].tolist() == [7, 7]
    assert world.peers.left[rows, BLOCK].tolist() == [shape.state_bytes[BLOCK]] * 2
    assert world.restarted == 2


def test_the_first_twelve_are_asked_by_everybody(shape: SwarmShape) -> None:
    crowd = Simulation(shape, FIRST, peers=90, hours=0.05)
    for _ in crowd.run():
        pass
    peers = crowd.world.peers
    for block in range(3):
        mine = np.flatnonzero(peers.block == block)
        asked = [peers.ids[row] for row in mine if crowd.world.donors[BLOCK][row]]
        first = sorted(peers.ids[row] for row in mine)[:11]
        assert set(first) <= set(asked)
        assert len(asked) <= 11 + 6  # and the leaders of the last commits


def test_longer_rounds_keep_fewer_states() -> None:
    assert [kept_states(seconds) for seconds in (5.0, 10.0, 15.0, 60.0)] == [6, 6, 4, 3]
