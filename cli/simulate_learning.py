"""``blockswarm simulate learning``: what deadlines, slow lines and lost updates do to learning."""

from __future__ import annotations

from pathlib import Path

import click

from blockswarm.cli.entry import EXIT_INTERRUPTED
from blockswarm.cli.options import PathType, json_output, learning_on, seeds, working_in_processes
from blockswarm.cli.output import print_json


@click.command()
@click.option(
    "--regime",
    "regimes",
    multiple=True,
    metavar="NAME|FILE",
    help="lockstep, mild, wan-tight, wan-mid, wan-loose, edge-mid, bad-edge, bad-edge-loose, or a TOML file. "
    "Repeatable. [default: all eight]",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="fixed-<steps> or elastic, with +carry, +fp16, +int8, +int4 behind it. Repeatable. "
    "[default: fixed-4, fixed-8, fixed-16, elastic, elastic+int4]",
)
@click.option(
    "--recipe",
    default="paper",
    show_default=True,
    metavar="NAME|FILE",
    help="Payload, speeds, blocks, replicas and rounds: paper, own (updates as large as they are), or a TOML file.",
)
@learning_on
@click.option("--blocks", type=click.IntRange(1, 256), help="Instead of the recipe's.")
@click.option("--replicas", type=click.IntRange(1, 64), help="Workers of each block, instead of the recipe's.")
@click.option("--rounds", type=click.IntRange(1, 10_000), help="Deadlines, instead of the recipe's.")
@click.option("--seeds", type=seeds, default="0", show_default=True, metavar="N,N…")
@click.option(
    "--eval-bytes",
    type=click.IntRange(0),
    default=32768,
    show_default=True,
    help="Held-out bytes to measure; 0 = all.",
)
@click.option(
    "--output",
    type=PathType,
    default=Path("results/learning"),
    show_default=True,
    metavar="DIR",
    help="Folder for JSON, CSV, table and pictures; what is there already is not simulated again.",
)
@working_in_processes
@json_output
def learning(
    regimes: tuple[str, ...],
    policies: tuple[str, ...],
    recipe: str,
    size: str,
    blocks: int | None,
    replicas: int | None,
    rounds: int | None,
    seeds: tuple[int, ...],
    data: str,
    eval_bytes: int,
    output: Path,
    jobs: int,
    threads: int,
    as_json: bool,
) -> int | None:
    """Simulate learning under deadlines: real training by virtual workers whose updates come late, or never.

    Every policy runs for the same simulated time, and meets the same luck. Ctrl-C shows what is done so far; the same
    command goes on from there.

    \b
    Examples:
      blockswarm simulate learning --regime wan-mid --policy fixed-8 --policy elastic
      blockswarm simulate learning --data wikitext-2 --seeds 0,1,2 --jobs 2
      blockswarm simulate learning --size smoke --rounds 3 --output trial --json
    """
    from blockswarm.cli.progress import TaskBars
    from blockswarm.lab.learning.regime import REGIMES
    from blockswarm.lab.learning.report import write_report
    from blockswarm.lab.learning.results import table
    from blockswarm.lab.learning.run import POLICIES, Run, run
    from blockswarm.pictures import pyplot

    pyplot()  # before hours of work, not after them
    asked = Run(
        regimes=regimes or REGIMES,
        policies=policies or POLICIES,
        recipe=recipe,
        size=size,
        blocks=blocks,
        replicas=replicas,
        rounds=rounds,
        seeds=seeds,
        data=data,
        eval_bytes=eval_bytes,
        output=output,
        jobs=jobs,
        threads=threads,
    )
    with TaskBars() as bars:
        figures, interrupted = run(asked, bars.report, lambda line: click.echo(f"warning: {line}", err=True))
    written = write_report(output, figures) if figures.rows else []
    if as_json:
        print_json(
            {
                "simulated": True,
                "interrupted": interrupted,
                "settings": figures.settings,
                "published": figures.published,
                "rows": figures.summary(),
            }
        )
    else:
        click.echo(table(figures))
        if written:
            click.echo("written: " + ", ".join(map(str, written)))
    return EXIT_INTERRUPTED if interrupted else None
