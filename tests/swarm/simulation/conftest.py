"""Small simulated swarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockswarm.swarm.simulation.scenario import BUILT_IN, Scenario
from blockswarm.swarm.simulation.shape import SwarmShape, default_manifest
from blockswarm.swarm.simulation.simulator import Simulation


@pytest.fixture(scope="session")
def shape() -> SwarmShape:
    """The default swarm: three blocks of size tiny, a round every 10 s, groups of 16."""
    return SwarmShape.of(default_manifest())


@pytest.fixture
def simulated(shape: SwarmShape) -> Callable[..., Simulation]:
    """Simulate a scenario, built-in or own, to the end."""

    def run(scenario: str | Scenario, **asked: Any) -> Simulation:
        chosen = BUILT_IN[scenario] if isinstance(scenario, str) else scenario
        simulation = Simulation(asked.pop("shape", shape), chosen, **{"peers": 30, "hours": 0.1, **asked})
        for _ in simulation.run():
            pass
        return simulation

    return run
