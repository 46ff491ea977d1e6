"""``blockswarm experiment``: measure the learning method itself."""

from __future__ import annotations

from pathlib import Path

import click

from blockswarm.cli.options import PathType, json_output, learning_on, seeds, working_in_processes
from blockswarm.cli.output import print_json


@click.command()
@click.argument("name")
@learning_on
@click.option("--seeds", type=seeds, default="0,1,2", show_default=True, metavar="N,N…")
@click.option("--steps", type=click.IntRange(0), default=0, help="Optimizer steps. [default: the experiment's own]")
@click.option(
    "--eval-bytes", type=click.IntRange(0), default=0, help="Bytes of each held-out part to measure. [default: all]"
)
@click.option(
    "--output",
    type=PathType,
    default=Path("results"),
    show_default=True,
    metavar="DIR",
    help="Folder for JSON, CSV, table and figure, and for what is trained (in .cache).",
)
@click.option("--resume", is_flag=True, help="Go on with the figures in the output folder: make only what is missing.")
@click.option(
    "--save", type=PathType, metavar="DIR", help="Write the first stack of blocks of the first seed as a model folder."
)
@working_in_processes
@click.option("--device", default="cpu", show_default=True, help="torch device.")
@json_output
def command(
    name: str,
    size: str,
    seeds: tuple[int, ...],
    data: str,
    steps: int,
    eval_bytes: int,
    output: Path,
    resume: bool,
    save: Path | None,
    jobs: int,
    threads: int,
    device: str,
    as_json: bool,
) -> None:
    """Run experiment NAME: train, measure over whole held-out text, and write figures with how they were made.

    NAME list shows the experiments, NAME report makes one page of all figures in the output folder. Ctrl-C keeps every
    training and measurement that has ended; --resume goes on.

    \b
    Examples:
      blockswarm experiment list
      blockswarm experiment readouts --data wikitext-2 --jobs 2
      blockswarm experiment sigma-range --seeds 0 --steps 50 --json
      blockswarm experiment report --output results
    """
    from blockswarm.lab.run import Run, find, summary_json
    from blockswarm.lab.run import run as carry_out

    if name == "list":
        from blockswarm.lab.experiments import EXPERIMENTS

        for experiment in EXPERIMENTS.values():
            click.echo(f"{experiment.name:12} {experiment.question}")
        return
    if name == "report":
        from blockswarm.lab.report import assemble

        page = output.parent / f"{output.name}.md"
        click.echo(f"{page}: {', '.join(assemble(output, page))}")
        return
    find(name)
    asked = Run(
        name=name,
        size=size,
        seeds=seeds,
        data=data,
        output=output,
        steps=steps,
        eval_bytes=eval_bytes,
        jobs=jobs,
        threads=threads,
        device=device,
        resume=resume,
        save=save,
    )
    from blockswarm.cli.progress import TaskBars
    from blockswarm.lab.report import write

    with TaskBars() as bars:
        figures = carry_out(asked, bars.report, lambda line: click.echo(f"warning: {line}", err=True))
    written = write(asked.output, figures)
    if as_json:
        print_json(summary_json(figures))
        return
    if save:
        click.echo(f'model folder: {save} (try: blockswarm generate --checkpoint {save} "The ")')
    click.echo((asked.output / f"{name}.md").read_text())
    click.echo("written: " + ", ".join(str(path) for path in written))
