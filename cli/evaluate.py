"""``blockswarm evaluate``: measure the model through the swarm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.asking import connected
from blockswarm.cli.options import choosing_run, finding_peers, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.readouts import Readout


@click.command()
@click.option(
    "--data", metavar="SPEC", help="docs, a file or folder, or hf:<dataset>[:config]. [default: the manifest's]"
)
@click.option(
    "--part",
    type=click.Choice(["heldout", "all"]),
    default="heldout",
    show_default=True,
    help="The tenth of a corpus that volunteers do not train on, or a whole FILE they never saw.",
)
@click.option(
    "--readout",
    type=click.Choice(["both", "parallel", "sweep"]),
    default="both",
    show_default=True,
    help="All blocks at once, averaged; or one after another as in the paper.",
)
@click.option("--max-bytes", type=int, default=8192, show_default=True, metavar="N", help="Most text to use.")
@click.option(
    "--states",
    type=click.Choice(["latest", "genesis"]),
    default="latest",
    show_default=True,
    help="What training has reached, or what it began with (served during the first rounds).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sweep's noise.")
@finding_peers
@choosing_run
@json_output
def command(
    data: str | None,
    part: str,
    readout: str,
    max_bytes: int,
    states: str,
    seed: int,
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    as_json: bool,
) -> None:
    """Measure how well the swarm's model predicts a text: teacher-forced cross-entropy in nats per byte.

    \b
    Examples:
      blockswarm evaluate
      blockswarm evaluate --data unseen.txt --part all --readout parallel --json
    """
    from blockswarm.swarm.evaluation import evaluate, read_stretches

    readouts: tuple[Readout, ...] = ("parallel", "sweep")
    with connected(peers_file, peer, run_id) as swarm:
        spec = data or swarm.manifest.data.name
        context = swarm.manifest.model.context
        stretches = read_stretches(spec, context=context, max_bytes=max_bytes, whole=part == "all")
        results = {
            name: evaluate(swarm, stretches, readout=name, seed=seed, genesis=states == "genesis")
            for name in readouts
            if readout in ("both", name)
        }
        count = next(iter(results.values())).bytes
        if as_json:
            print_json(
                {
                    "run_id": swarm.run_id,
                    "data": spec,
                    "part": part,
                    "bytes": count,
                    "ce": {name: result.nats_per_byte for name, result in results.items()},
                    "missing": {name: result.missing for name, result in results.items()},
                    "states": {name: result.states for name, result in results.items()},
                }
            )
            return
        click.echo(f"{swarm.run_id}: {count} bytes of {spec} ({part})")
        for name, result in results.items():
            without = f", without block {', '.join(map(str, result.missing))}" if result.missing else ""
            click.echo(f"  {name:<9} {result.nats_per_byte:.3f} nats/byte{without}")
