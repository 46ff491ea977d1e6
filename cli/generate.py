"""``blockswarm generate``: continue a text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli.asking import asked_model
from blockswarm.cli.options import choosing_model, json_output
from blockswarm.cli.output import for_terminal, print_json
from blockswarm.swarm.deadline import Deadline

if TYPE_CHECKING:
    from blockswarm.swarm.report import CallReport

WHERE = ("checkpoint", "counts", "device", "threads", "peers_file", "peer", "run_id")
"""Parameters that say where the model is; the others say what is wanted of it."""


@click.command()
@click.argument("prompt", default="")
@click.option("--max-bytes", type=int, default=256, show_default=True, metavar="N", help="Most bytes to add.")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0 takes the likeliest byte each time.")
@click.option("--top-k", type=int, default=0, help="Choose among the K likeliest bytes only. [default: all]")
@click.option("--top-p", type=float, default=1.0, help="Choose among the likeliest bytes of this total probability.")
@click.option("--seed", type=int, help="The same seed and states give the same text. [default: random]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. Repeatable.")
@click.option(
    "--readout",
    type=click.Choice(["parallel", "sweep", "one-sweep"]),
    default="parallel",
    show_default=True,
    help="All blocks at once, averaged; or one after another as in the paper. one-sweep draws all bytes in one "
    "traversal, to measure it: its text has no quality.",
)
@click.option(
    "--draft",
    default="ngram",
    show_default=True,
    metavar="WHO",
    help="Who guesses ahead, so that one round trip yields several bytes: ngram (from the text itself), counts "
    "(the run's, fetched once), block (one block, fetched and run here), a file of n-gram counts, or none. The text is "
    "the same.",
)
@click.option("--best-effort", is_flag=True, help="Go on without blocks nobody serves, and say which.")
@click.option(
    "--timeout",
    type=float,
    default=120.0,
    show_default=True,
    metavar="S",
    help="Time for the whole text, connecting included.",
)
@click.option("--stats", is_flag=True, help="Then say on stderr how many round trips it took, and how long.")
@choosing_model
@json_output
def command(prompt: str, as_json: bool, stats: bool, **options: Any) -> None:
    """Continue PROMPT with the swarm's model, byte by byte as the text comes. PROMPT - reads standard input.

    With --checkpoint the model is taken from a folder, and the same seed gives the text its states give in the swarm.

    \b
    Examples:
      blockswarm generate "The " --max-bytes 200 --temperature 0.5
      blockswarm generate "def " --seed 1 --json
      blockswarm generate "The " --stats --draft none
      blockswarm generate "The " --checkpoint demo-0123456789ab
    """
    from blockswarm.swarm.options import Writing

    Writing(**{name: value for name, value in options.items() if name not in WHERE})  # refused before anybody is asked
    given = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    deadline = Deadline(options["timeout"])  # whoever types the prompt may take his time
    in_folder = options["checkpoint"] is not None
    with asked_model(**{name: options.pop(name) for name in WHERE}, deadline=deadline) as model:
        if not in_folder:  # opening a folder is no connecting: there only the work counts
            options["timeout"] = deadline.left()
        if not as_json:
            _write(model.stream(given, **options))
            if stats and (last := model.stats.last):
                click.echo(describe(last), err=True)
            return
        text = model.generate(given, **options)
        report = model.stats.as_json()["last"]
        print_json({"run_id": model.run_id, "prompt": given.decode(errors="replace"), "text": text, **report})


def describe(report: CallReport) -> str:
    """One line on how a text came about."""
    told = f"{report.bytes} bytes in {report.seconds:.2f} s"
    if report.first_byte_seconds is not None:
        told += f", the first after {report.first_byte_seconds:.2f} s"
    if report.bytes_per_round_trip is not None:
        told += (
            f"; {report.round_trips} round trips, {report.bytes_per_round_trip:.2f} bytes each; "
            f"{report.accepted} of {report.drafted} guessed bytes accepted"
        )
    return told


def _write(pieces: Iterator[str]) -> None:
    """Show the text as it comes; it ends with a newline however it ends, so that no error shares its line."""
    shown = for_terminal if sys.stdout.isatty() else str
    written = False
    try:
        for piece in pieces:
            click.echo(shown(piece), nl=False)
            written = True
    except BaseException:
        if written:
            click.echo()
        raise
    click.echo()
