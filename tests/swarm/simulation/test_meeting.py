"""Simulated lists are those that real leaders would sign."""

from __future__ import annotations

import dataclasses

from blockswarm.swarm.policy.grouping import choose_members
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.simulation.meeting import form_lists
from blockswarm.swarm.simulation.scenario import BUILT_IN
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation


def test_where_everybody_meets_the_lists_are_those_of_the_policies(shape: SwarmShape) -> None:
    small = dataclasses.replace(shape, group_size=4)
    simulation = Simulation(small, BUILT_IN["lab"], peers=24, hours=0.1)
    simulation.world.directory = dataclasses.replace(
        simulation.world.directory, known=1.0 + 0.0 * simulation.world.directory.known
    )
    times = small.times(3)
    lists = form_lists(simulation.world, times)
    peers = simulation.world.peers
    assert lists.subject.tolist() == [0, 1, 2, 3]
    for number, subject in enumerate([0, 1, 2, -1]):
        replicas = [peer_id for row, peer_id in enumerate(peers.ids) if subject in (-1, peers.block[row])]
        order = leader_order(replicas, run_digest=small.run_digest, subject=subject, round_number=3)
        reachable = {peer_id: not peers.hidden[peers.ids.index(peer_id)] for peer_id in order}
        expected = choose_members(reachable, leader=order[0], group_size=4, limit=256)
        listed = lists.members[number][lists.present[number]]
        assert len(expected) > 4 and [peers.ids[row] for row in listed] == expected
    assert (lists.signed >= times.train_end).all()
    assert (lists.signed <= times.meet_end).all()


def test_who_is_on_record_and_silent_makes_the_leader_wait(shape: SwarmShape) -> None:
    simulation = Simulation(shape, BUILT_IN["lab"], peers=12, hours=0.1)
    world, times = simulation.world, shape.times(3)
    world.directory = dataclasses.replace(world.directory, known=1.0 + 0.0 * world.directory.known)
    before = form_lists(world, times).signed[0] - times.train_end
    ghost = int(world.rows_of(0, 0, world.peers.alive(0.0))[0])
    world.peers.leaves[ghost], world.peers.record_until[ghost] = times.train_end - 1.0, times.close
    after = form_lists(world, times).signed[0] - times.train_end
    assert before < 0.2 * shape.lengths.meet
    assert after >= 0.5 * shape.lengths.meet
