"""``blockswarm simulate swarm``: many volunteers for hours, in seconds."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.entry import EXIT_INTERRUPTED
from blockswarm.cli.options import PathType, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.simulation.simulator import Simulation

MOST_PEERS = 1_000_000
MOST_HOURS = 24.0 * 365


@click.command()
@click.option("--peers", type=click.IntRange(1, MOST_PEERS), default=1000, show_default=True, help="Volunteers.")
@click.option(
    "--hours",
    type=click.FloatRange(0, MOST_HOURS, min_open=True),
    default=1.0,
    show_default=True,
    help="Simulated time.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Same seed, same figures.")
@click.option(
    "--scenario",
    default="home",
    show_default=True,
    metavar="NAME|FILE",
    help="home, loss, partition, liars, rush, lab, or a TOML file.",
)
@click.option(
    "--manifest", type=PathType, metavar="FILE", help="The swarm's manifest. [default: a new one of size tiny]"
)
@click.option("--plot", type=PathType, metavar="FILE", help="Write a picture (PNG); needs matplotlib.")
@json_output
def swarm(
    peers: int,
    hours: float,
    seed: int,
    scenario: str,
    manifest: Path | None,
    plot: Path | None,
    as_json: bool,
) -> int | None:
    """Simulate a swarm of volunteers that come, train, average, serve and go.

    They decide with the policies that running peers use, on the same manifest: a forecast of coverage, participation,
    rounds, traffic and waiting, not a measurement. Ctrl-C shows what has been simulated so far.

    \b
    Examples:
      blockswarm simulate swarm --peers 10000 --hours 1
      blockswarm simulate swarm --scenario loss --plot loss.png
      blockswarm simulate swarm --manifest swarm.toml --scenario mine.toml --json
    """
    from blockswarm.pictures import pyplot
    from blockswarm.swarm.manifest import Manifest
    from blockswarm.swarm.simulation.plots import draw
    from blockswarm.swarm.simulation.report import Resources, lines, report
    from blockswarm.swarm.simulation.scenario import scenario_from
    from blockswarm.swarm.simulation.shape import SwarmShape, default_manifest
    from blockswarm.swarm.simulation.simulator import Simulation

    chosen = scenario_from(scenario)
    shape = SwarmShape.of(default_manifest() if manifest is None else Manifest.load(manifest))
    if plot is not None:
        pyplot()  # before hours of work, not after them
    begin = time.monotonic()
    simulation = Simulation(shape, chosen, peers=peers, hours=hours, seed=seed, source=scenario)
    interrupted = _run(simulation)
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    figures = report(simulation, Resources(time.monotonic() - begin, usage), interrupted=interrupted)
    if plot is not None:
        draw(simulation, figures, plot)
    if as_json:
        print_json(figures)
    else:
        click.echo("\n".join(lines(figures)))
    return EXIT_INTERRUPTED if interrupted else None


def _run(simulation: Simulation) -> bool:
    """Simulate to the end, with a bar where somebody looks; whether Ctrl-C came before it."""
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("simulating rounds", total=simulation.rounds)
        try:
            for done in simulation.run():
                bars.update(task, completed=done)
        except KeyboardInterrupt:
            return True
    return False
