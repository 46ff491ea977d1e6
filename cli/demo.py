"""``blockswarm demo``: a whole swarm on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from blockswarm.cli.options import PathType, json_output
from blockswarm.cli.output import for_terminal, print_json


@click.command()
@click.option("--peers", type=int, default=6, show_default=True, metavar="N", help="Volunteers.")
@click.option("--blocks", type=int, default=3, show_default=True, metavar="N", help="Blocks of the model.")
@click.option("--seconds", type=float, default=120.0, show_default=True, metavar="S", help="Time to train.")
@click.option(
    "--data", default="docs", show_default=True, metavar="SPEC", help="docs, a file or folder, or hf:<dataset>."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of parameters, batches and text.")
@click.option(
    "--keep-dir", type=PathType, metavar="DIR", help="Run there and keep logs and checkpoints. [default: temporary]"
)
@json_output
def command(as_json: bool, keep_dir: Path | None, **options: Any) -> None:
    """Run a whole swarm on this machine: real processes, real libp2p, real training on real text.

    A bootstrap node and the volunteers start, train for the given time, are measured from outside as any client would
    (cross-entropy before and after, generated text), and stop. With --json the last line is the result, progress goes
    to standard error.

    \b
    Examples:
      blockswarm demo
      blockswarm demo --seconds 60 --json
    """
    from blockswarm.peer.demo import DemoConfig, run_demo
    from blockswarm.peer.demo_view import open_display, summary

    config = DemoConfig(keep_dir=keep_dir, **options)
    config.validate()
    display = open_display(sys.stderr if as_json else sys.stdout)
    try:
        result = run_demo(config, display)
    finally:
        display.close()
    if as_json:
        print_json(vars(result))
    else:
        shown = for_terminal if sys.stdout.isatty() else str
        click.echo("\n" + shown(summary(result)))
