"""What moves in a round of lists."""

from __future__ import annotations

from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.scenario import read_scenario
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation


def test_a_line_carries_no_more_than_fits_before_the_phases_end(shape: SwarmShape) -> None:
    slow = {"up_mbit": 0.05, "hidden": False}
    scenario = read_scenario({"sessions": {"endless": True}, "nat": {"share": 0.0}, "volunteers": [slow]})
    simulation = Simulation(shape, scenario, peers=9, hours=20 * shape.seconds / 3600)
    assert list(simulation.run())[-1] == 20
    peers, averaging = simulation.world.peers, PURPOSES.index("averaging")
    phases = shape.lengths.meet + shape.lengths.scatter + shape.lengths.decide + shape.lengths.gather
    assert 0 < peers.sent[0, averaging] <= 20 * phases * peers.up[0]
    assert peers.sent[1:, averaging].min() > peers.sent[0, averaging]
    assert round(peers.sent[:, averaging].sum()) == round(peers.received[:, averaging].sum())
