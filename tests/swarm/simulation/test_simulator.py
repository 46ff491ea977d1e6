"""Whole simulated swarms: what must hold whatever the constants are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockswarm.swarm.policy.placement import peer_hash
from blockswarm.swarm.simulation.peers import PURPOSES, TRAINING
from blockswarm.swarm.simulation.report import Resources, lines, report
from blockswarm.swarm.simulation.scenario import BUILT_IN, Scenario, read_scenario
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation

Simulated = Callable[..., Simulation]
QUIET = {"sessions": {"median_hours": 1e6}, "nat": {"share": 0.0}, "day": {"amplitude": 0.0}}
"""Nobody comes or goes, and everybody can be reached."""


def figures(simulation: Simulation) -> dict[str, Any]:
    return report(simulation, Resources(0.0, 0.0))


def lab(**changed: Any) -> Scenario:
    return read_scenario({**BUILT_IN["lab"].model_dump(), **QUIET, **changed})


def test_the_same_seed_gives_the_same_figures_and_another_one_others(simulated: Simulated) -> None:
    first, again, other = (figures(simulated("home", hours=0.2, seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_everything_is_said_to_be_simulated_and_fits_json(simulated: Simulated) -> None:
    said = figures(simulated("loss"))
    assert said["simulated"] is True
    assert lines(said)[0].startswith("SIMULATED swarm of 30 volunteers")
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_a_steady_swarm_on_fast_lines_loses_nothing(simulated: Simulated) -> None:
    said = figures(simulated(lab(), peers=15))  # one group, of the embedding, too
    assert said["participation"] == said["coverage"] == said["client"]["success"] == 1.0
    assert said["rounds_per_hour"] == 360.0
    assert said["gaps"] == said["states_lost"] == said["commits_rolled_back"] == said["joined"] == 0
    assert said["gb_per_peer_day"]["states"] == {"sent": 0.0, "received": 0.0}


def test_more_replicas_than_a_group_holds_take_part_in_several(simulated: Simulated) -> None:
    assert figures(simulated(lab(), peers=60))["participation"] == 1.0


def test_replicas_without_company_make_their_rounds_alone_and_send_no_updates(simulated: Simulated) -> None:
    simulation = simulated(lab(), peers=3)
    assert simulation.tally.lone == 3 * simulation.rounds
    said = figures(simulation)
    assert said["participation"] == 1.0
    embedding_only = said["gb_per_peer_day"]["averaging"]["sent"]
    assert embedding_only < figures(simulated(lab(), peers=6))["gb_per_peer_day"]["averaging"]["sent"] / 5


def test_what_one_sends_another_receives(simulated: Simulated) -> None:
    peers = simulated("rush", hours=0.2).world.peers
    for purpose in ("averaging", "states", "meeting"):
        column = PURPOSES.index(purpose)
        assert peers.sent[:, column].sum() == pytest.approx(peers.received[:, column].sum(), rel=1e-9), purpose
        assert (peers.sent[:, column] >= 0).all()


def test_an_update_moves_once_out_and_once_in_for_each_member(simulated: Simulated, shape: SwarmShape) -> None:
    # A butterfly of n moves (n - 1) / n of the vector four times at each member: out and in, scattered and gathered.
    simulation = simulated(lab(), peers=6, hours=0.05)
    peers, column = simulation.world.peers, PURPOSES.index("averaging")
    block, embedding = shape.update_bytes
    expected = simulation.rounds * 2 * (block * 1 / 2 + embedding * 5 / 6)
    assert peers.sent[:, column].mean() == pytest.approx(expected, rel=0.01)


def test_every_newcomer_finds_a_block_and_its_state(simulated: Simulated) -> None:
    simulation = simulated(read_scenario({**QUIET, "start": {"warm": False, "minutes": 1.0}}), hours=0.1)
    peers = simulation.world.peers
    there = peers.alive(simulation.done * 10.0)
    assert there.sum() == 30
    assert (peers.stage[there] == TRAINING).all()
    replicas = np.bincount(peers.block[there], minlength=3)
    assert replicas.max() - replicas.min() <= 4  # placement spreads them
    assert np.isfinite(peers.first_commit[there]).mean() > 0.9


def test_after_a_loss_every_block_commits_again(simulated: Simulated) -> None:
    simulation = simulated("loss", hours=0.2, peers=60)
    said = figures(simulation)
    assert said["lost"] == pytest.approx(0.3 * 60, abs=2)
    assert said["heal_s"] is not None
    assert 0 < said["heal_s"] <= 60


def test_a_block_whose_holders_are_all_gone_begins_again_and_counts_as_a_gap(simulated: Simulated) -> None:
    # Two volunteers a block, half of everyone vanishes: with this seed one block loses both.
    scenario = read_scenario({**QUIET, "departures": [{"at": 0.3, "share": 0.5}]})
    worst = [simulated(scenario, peers=6, hours=0.3, seed=seed) for seed in range(4)]
    lost = [figures(simulation) for simulation in worst if simulation.world.states_lost]
    assert lost, "of four seeds at least one takes both replicas of a block"
    for said in lost:
        assert said["gaps"] >= 1
        assert said["coverage"] < 1.0
        assert said["percentiles"]["gap_s"]["p50"] > 10.0


def test_a_partition_makes_two_lines_of_which_one_survives(simulated: Simulated) -> None:
    scenario = lab(partitions=[{"at": 0.2, "minutes": 2.0, "share": 0.3}])
    simulation = simulated(scenario, hours=0.15)
    said = figures(simulation)
    assert said["commits_of_lighter_forks"] > 0
    world = simulation.world
    assert not world.split
    now = simulation.done * 10.0
    training = world.peers.training(now)
    behind = world.heads.version[world.peers.block[training], 0] - world.peers.version[training, 0]
    assert (behind == 0).all(), "everybody is on one line again"


@pytest.mark.parametrize("kind", ["long", "nan"])
def test_liars_are_refused_and_kept_out(kind: str, simulated: Simulated) -> None:
    simulation = simulated(lab(liars={"share": 0.1, "kind": kind}), hours=0.3, seed=2)
    peers, said = simulation.world.peers, figures(simulation)
    assert peers.liar.sum() >= 2
    assert said["faulty_updates"] > 0
    # Kept out for twice as long each time: of 108 rounds a liar sees eight or nine, forgiven once.
    assert said["faulty_updates"] <= 9 * peers.liar.sum()
    assert said["weight_of_liars"] == 0.0


def test_claims_of_samples_buy_no_more_than_the_cap(simulated: Simulated, shape: SwarmShape) -> None:
    honest = lab(network=BUILT_IN["lab"].network.model_dump(), compute={"gflops": {"median": 60.0, "spread": 0.0}})
    liars = honest.model_copy(
        update={"liars": BUILT_IN["liars"].liars.model_copy(update={"kind": "samples", "share": 0.1})}
    )
    simulation = simulated(liars, hours=0.1, seed=1)
    share = simulation.world.peers.liar.mean()
    most = shape.max_weight_ratio * share / (1 - share + shape.max_weight_ratio * share)
    assert figures(simulation)["weight_of_liars"] <= most * 1.1


def test_a_silent_member_does_not_keep_the_others_from_committing(simulated: Simulated) -> None:
    said = figures(simulated(lab(liars={"share": 0.1, "kind": "silent"}), seed=1))
    assert said["rounds_per_hour"] == 360.0
    assert said["late_of_listed"] > 0


def test_slow_lines_are_late_and_a_longer_round_takes_them_in(simulated: Simulated, shape: SwarmShape) -> None:
    slow = lab(network={"up_mbit": {"median": 4.0, "spread": 0.5}, "down_mbit": {"median": 50.0}})
    short = figures(simulated(slow))
    from blockswarm.swarm.policy.phases import default_phases

    longer = dataclasses.replace(shape, seconds=60.0, lengths=default_phases(60.0, sum(shape.update_bytes), 2e5))
    assert short["participation"] < 0.9
    assert figures(simulated(slow, shape=longer, hours=0.5))["participation"] > 0.97


def test_a_stopped_simulation_tells_what_it_has(simulated: Simulated, shape: SwarmShape) -> None:
    simulation = Simulation(shape, BUILT_IN["home"], peers=30, hours=1.0)
    for done in simulation.run():
        if done == 7:
            break
    said = report(simulation, Resources(0.0, 0.0), interrupted=True)
    assert (said["rounds"], said["interrupted"]) == (7, True)
    assert "(interrupted)" in lines(said)[0]


def test_known_machines_can_be_described_one_of_them_slow_and_one_leaving(simulated: Simulated) -> None:
    machine = {"up_mbit": 100.0, "down_mbit": 100.0, "rtt_ms": 40.0, "samples_per_second": 100.0, "hidden": False}
    known = [{**machine, "block": number % 3} for number in range(9)]
    known[0]["up_mbit"] = 0.5
    known[4] |= {"leaves_minutes": 3.0, "goodbye": True}
    simulation = simulated(read_scenario({"sessions": {"endless": True}, "volunteers": known}), peers=9)
    said, peers = figures(simulation), simulation.world.peers
    assert peers.count == 9
    assert peers.block.tolist() == [0, 1, 2] * 3
    # Of 36 rounds the one that leaves sees half; the slow one is late in all, and where it leads, nobody hears it and
    # the second in order takes over.
    assert said["participation"] == pytest.approx((36 * 7 + 18) / (36 * 8 + 18), abs=0.03)
    assert peers.alive(simulation.done * 10.0).sum() == 8
    assert said["percentiles"]["volunteers"]["p5"] == 8


def test_ids_look_like_those_of_peers(simulated: Simulated) -> None:
    from blockswarm.dht.peer_id import is_peer_id

    simulation = simulated("home")
    assert all(is_peer_id(peer_id) for peer_id in simulation.world.peers.ids)
    assert len({peer_hash(peer_id) for peer_id in simulation.world.peers.ids}) == simulation.world.peers.count
