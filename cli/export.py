"""``blockswarm export``: the swarm's model as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli import evaluate as measuring
from blockswarm.cli.asking import connected
from blockswarm.cli.byte_progress import progress_bar
from blockswarm.cli.options import PathType, choosing_run, finding_peers, json_output, using_counts
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.evaluation import Sample
    from blockswarm.swarm.model_card import ModelSummary

EXPORT_SECONDS = 600.0


@click.command()
@click.argument("folder", type=PathType, required=False)
@click.option("--force", is_flag=True, help="Replace an older model in FOLDER. Anything else is never overwritten.")
@click.option("--evaluate", is_flag=True, help="Measure the model afterwards, on this machine, for its card.")
@click.option("--data", metavar="SPEC", help="With --evaluate: text to measure on. [default: the manifest's]")
@click.option(
    "--max-bytes",
    type=measuring.byte_limit,
    default=str(measuring.DEFAULT_BYTES),
    show_default=True,
    metavar="N|all",
    help="With --evaluate: most bytes to predict.",
)
@click.option(
    "--timeout", type=float, default=EXPORT_SECONDS, show_default=True, metavar="S", help="Time for fetching the model."
)
@finding_peers
@choosing_run
@using_counts
@json_output
def command(
    folder: Path | None,
    force: bool,
    evaluate: bool,
    data: str | None,
    max_bytes: int,
    timeout: float,
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    counts: Path | None,
    as_json: bool,
) -> None:
    """Write the newest committed state of every block of a live swarm into FOLDER (default: the run's id).

    FOLDER appears when all of it has arrived and was verified; `generate` and `evaluate` take it with --checkpoint,
    without a network.

    \b
    Examples:
      blockswarm export
      blockswarm export my-model --evaluate
    """
    from blockswarm.swarm.evaluation import take_sample

    sample = None
    with connected(peers_file, peer, run_id, counts=counts) as swarm, progress_bar("fetching") as progress:
        if evaluate:  # before anything is fetched: it may not be there
            name = data or swarm.manifest.data.name
            sample = take_sample(name, context=swarm.manifest.model.context, max_bytes=max_bytes)
        place = Path(swarm.run_id) if folder is None else folder
        summary = swarm.export(place, force=force, timeout=timeout, progress=progress)
    if not as_json:
        click.echo("\n".join(lines(summary)))
    told = summary.as_json() | {"evaluation": None}
    try:
        if sample is not None:
            told["evaluation"] = _evaluate(summary, sample, quiet=as_json)
    finally:
        if as_json:  # the model is there, whatever became of measuring it
            print_json(told)


def _evaluate(summary: ModelSummary, sample: Sample, *, quiet: bool) -> dict[str, Any]:
    """Measure the folder, for its card and, unless ``quiet``, for people; the figures as plain values."""
    from blockswarm.swarm import LocalModel
    from blockswarm.swarm.model_writer import write_card

    measured, failed = measuring.measure(LocalModel.open(summary.folder, threads=1), sample, "both")
    write_card(summary, measured)
    context = summary.manifest.model.context
    if not quiet:
        click.echo("\n".join(measuring.lines(summary.manifest.run_id, sample, context, measured, failed)))
    return measuring.as_values(sample, context, measured, failed)


def lines(summary: ModelSummary) -> list[str]:
    """The folder for people."""
    text = [f"wrote {summary.folder}: {summary.parameters:,} parameters in {summary.file_bytes / 1e6:.1f} MB"]
    for state in summary.states:
        signed = f"certified by {state.voters} of {state.members}" if state.members else _unsigned(state.round)
        text.append(
            f"  {state.file:<22} round {state.round}, {state.samples:,} samples, {signed}, {state.digest.hex()[:12]}"
        )
    return text


def _unsigned(round_number: int) -> str:
    return "uncertified" if round_number else "what training begins with"
