"""``blockswarm plan``: advice for a swarm to be."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from blockswarm.cli.options import PathType, bandwidth, json_output
from blockswarm.cli.output import print_json


def token_count(value: str) -> float:
    """``1e9`` or ``2000000`` as a click type."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 1 <= number < 1e18:
        raise click.BadParameter(f"{value!r} is not a number of tokens such as 1e9")
    return number


@click.command()
@click.option(
    "--peers", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Volunteers at a time."
)
@click.option(
    "--manifest", type=PathType, metavar="FILE", help="The swarm's manifest. [default: a new one of size tiny]"
)
@click.option(
    "--bandwidth", "upload", type=bandwidth, metavar="RATE", help="Upload of the median volunteer. [default: 20mbit]"
)
@click.option(
    "--scenario",
    default="home",
    show_default=True,
    metavar="NAME|FILE",
    help="Volunteers: a scenario of `blockswarm simulate swarm`.",
)
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.999,
    show_default=True,
    help="Share of blocks that must outlive a loss.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.3,
    show_default=True,
    help="Share of volunteers that vanish at once.",
)
@click.option(
    "--tokens", type=token_count, default="1e9", show_default=True, metavar="N", help="Bytes to train each block on."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Same seed, same advice.")
@json_output
def command(
    peers: int,
    manifest: Path | None,
    upload: float | None,
    scenario: str,
    coverage: float,
    loss: float,
    tokens: float,
    seed: int,
    as_json: bool,
) -> None:
    """Advise on round length, group size and replicas, and say what to expect and what limits.

    Candidates are tried in short simulations of the swarm with the policies of running peers; the whole takes seconds.

    \b
    Examples:
      blockswarm plan --manifest swarm.toml --peers 200 --bandwidth 20mbit
      blockswarm plan --peers 30 --coverage 0.99 --tokens 1e8 --json
    """
    from blockswarm.swarm.manifest import Manifest
    from blockswarm.swarm.simulation.plan import PlanError, make_plan
    from blockswarm.swarm.simulation.scenario import scenario_from
    from blockswarm.swarm.simulation.shape import SwarmShape, default_manifest

    if upload is not None and upload <= 0:
        raise PlanError("--bandwidth: must be more than nothing, such as 20mbit")
    chosen = scenario_from(scenario)
    shape = SwarmShape.of(default_manifest() if manifest is None else Manifest.load(manifest))
    asked = partial(
        make_plan,
        shape,
        chosen,
        peers=peers,
        bandwidth=upload,
        coverage=coverage,
        loss=loss,
        tokens=tokens,
        seed=seed,
    )
    if not sys.stderr.isatty():
        plan = asked()
    else:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("simulating candidates", total=None)
            plan = asked(told=lambda done, total: bars.update(task, completed=done, total=total))
    if as_json:
        print_json(plan.to_json())
    else:
        click.echo("\n".join(plan.lines()))
