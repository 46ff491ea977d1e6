"""docs/scaling.md explains every figure, and its example of a scenario can be read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from blockswarm.swarm.simulation.report import Resources, report
from blockswarm.swarm.simulation.scenario import BUILT_IN, read_scenario
from blockswarm.swarm.simulation.simulator import Simulation

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
ELSEWHERE = (ROOT / "docs" / "operations.md").read_text()


def test_every_figure_is_explained(simulated: Callable[..., Simulation]) -> None:
    figures = report(simulated("home", hours=0.02), Resources(0.0, 0.0))
    names = {*figures, *figures["client"], *figures["directory"]}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE + ELSEWHERE] == []


def test_the_example_of_a_scenario_is_one() -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    scenario = read_scenario(tomllib.loads(example[1]))
    assert scenario.departures[0].share == 0.3
    assert scenario.partitions[0].minutes == 10.0


def test_every_built_in_scenario_is_named() -> None:
    assert [name for name in BUILT_IN if f"`{name}`" not in PAGE] == []
