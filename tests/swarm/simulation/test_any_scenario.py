"""Whatever a scenario says, a simulation ends, and its books balance."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.report import Resources, lines, report
from blockswarm.swarm.simulation.scenario import read_scenario
from blockswarm.swarm.simulation.shape import SwarmShape, default_manifest
from blockswarm.swarm.simulation.simulator import Simulation

SHAPE = SwarmShape.of(default_manifest())
SHARES = st.sampled_from([0.0, 0.3, 1.0])

SCENARIOS = st.fixed_dictionaries(
    {
        "sessions": st.fixed_dictionaries(
            {
                "median_hours": st.sampled_from([0.005, 0.05, 3.0]),
                "shape": st.sampled_from([0.3, 1.0]),
                "goodbye": SHARES,
            }
        ),
        "nat": st.fixed_dictionaries({"share": SHARES, "relayed": SHARES}),
        "network": st.fixed_dictionaries(
            {"up_mbit": st.sampled_from([{"median": 0.5, "spread": 1.0}, {"median": 50.0, "spread": 1.0}])}
        ),
        "compute": st.fixed_dictionaries(
            {"gflops": st.sampled_from([{"median": 0.01}, {"median": 60.0, "spread": 1.0}])}
        ),
        "clients": st.fixed_dictionaries({"per_peer_hour": st.sampled_from([0.0, 10.0, 1e5])}),
        "liars": st.fixed_dictionaries(
            {"share": SHARES, "kind": st.sampled_from(["long", "nan", "samples", "silent"])}
        ),
        "start": st.fixed_dictionaries({"warm": st.booleans(), "minutes": st.sampled_from([0.1, 1.0])}),
        "departures": st.lists(st.fixed_dictionaries({"at": SHARES, "share": SHARES}), max_size=1),
        "partitions": st.lists(
            st.fixed_dictionaries({"at": SHARES, "minutes": st.sampled_from([0.3, 5.0]), "share": SHARES}), max_size=1
        ),
    }
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(SCENARIOS, st.sampled_from([3, 4, 20]), st.sampled_from([2, 16]), st.sampled_from(["none", "trimmed"]))
def test_what_is_sent_is_received_and_shares_are_shares(
    raw: dict[str, Any], peers: int, group_size: int, robust: Any
) -> None:
    shape = dataclasses.replace(SHAPE, group_size=group_size, robust=robust, local_steps=5 if peers == 4 else None)
    simulation = Simulation(shape, read_scenario(raw), peers=peers, hours=0.04)
    for _ in simulation.run():
        pass
    rows = simulation.world.peers
    for purpose in ("averaging", "states", "meeting"):
        column = PURPOSES.index(purpose)
        assert rows.sent[:, column].sum() == pytest.approx(rows.received[:, column].sum(), rel=1e-9)
    assert (rows.version <= simulation.world.heads.version.max()).all()
    figures = report(simulation, Resources(0.0, 0.0))
    for share in ("coverage", "participation", "listed", "late_of_listed", "weight_of_liars"):
        assert 0.0 <= (figures[share] or 0.0) <= 1.0, share
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert "SIMULATED" in lines(figures)[0]
