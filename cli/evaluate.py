"""``blockswarm evaluate``: measure a model, in the swarm or in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli.asking import asked_model
from blockswarm.cli.byte_progress import progress_bar
from blockswarm.cli.options import choosing_model, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.model.mixing import Readout
    from blockswarm.swarm import LocalModel, SwarmClient
    from blockswarm.swarm.errors import ClientError
    from blockswarm.swarm.evaluation import Evaluation, Sample

DEFAULT_BYTES = 1 << 14
"""Bytes measured unless the user says otherwise: 16 stretches, enough for an interval, and seconds on a small swarm."""


def byte_limit(value: str) -> int:
    """A number of bytes, or ``all`` (0), as a click type."""
    if value == "all":
        return 0
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise click.BadParameter(f"{value!r} is neither a number of bytes nor 'all'")
    return number


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
@click.option(
    "--max-bytes",
    type=byte_limit,
    default=str(DEFAULT_BYTES),
    show_default=True,
    metavar="N|all",
    help="Most bytes to predict; of a longer text, evenly spread stretches are taken.",
)
@click.option(
    "--states",
    type=click.Choice(["latest", "genesis"]),
    default="latest",
    show_default=True,
    help="What training has reached, or what it began with.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sweep's noise.")
@click.option("--timeout", type=float, metavar="S", help="Time for each readout. [default: 600, more for long texts]")
@choosing_model
@json_output
def command(
    data: str | None,
    part: str,
    readout: str,
    max_bytes: int,
    states: str,
    seed: int,
    timeout: float | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Measure how well a model predicts a text: teacher-forced cross-entropy in nats and bits per byte.

    The same text and states give the same figures through the swarm and, with --checkpoint, from a folder.

    \b
    Examples:
      blockswarm evaluate
      blockswarm evaluate --data unseen.txt --part all --readout parallel --json
      blockswarm evaluate --checkpoint demo-0123456789ab --max-bytes all
    """
    from blockswarm.swarm.evaluation import take_sample

    with asked_model(**where) as model:
        manifest = model.manifest
        sample = take_sample(
            data or manifest.data.name, context=manifest.model.context, max_bytes=max_bytes, whole=part == "all"
        )
        options = {"seed": seed, "pin": None if states == "latest" else states, "timeout": timeout}
        measured, failed = measure(model, sample, readout, **options)
        if as_json:
            print_json({"run_id": model.run_id, **as_values(sample, manifest.model.context, measured, failed)})
        else:
            click.echo("\n".join(lines(model.run_id, sample, manifest.model.context, measured, failed)))


def measure(
    model: SwarmClient | LocalModel, sample: Sample, readout: str, **options: Any
) -> tuple[dict[Readout, Evaluation], dict[Readout, ClientError]]:
    """Measure with one readout or ``both``, with a progress bar; what could not be measured stands in the second."""
    from blockswarm.swarm.evaluation import evaluate_each

    readouts: tuple[Readout, ...] = ("parallel", "sweep")
    with progress_bar("measuring") as progress:
        return evaluate_each(
            model, sample, [one for one in readouts if readout in ("both", one)], progress=progress, **options
        )


def as_values(
    sample: Sample,
    context: int,
    measured: Mapping[Readout, Evaluation],
    failed: Mapping[Readout, ClientError],
) -> dict[str, Any]:
    """The figures as plain values for JSON; a readout that was not measured has null."""
    from blockswarm.model.windows import context_rule

    def each(value: Any) -> dict[str, Any]:
        return {name: value(one) for name, one in measured.items()} | dict.fromkeys(failed)

    return {
        "data": sample.name,
        "part": sample.part,
        "bytes": sample.predicted,
        "of_bytes": len(sample.text) - 1,
        "sha256": sample.digest.hex(),
        "context_rule": context_rule(context),
        "ce": each(lambda one: one.score.nats_per_byte),
        "bits_per_byte": each(lambda one: one.score.bits_per_byte),
        "ci95": each(lambda one: one.score.ci95),
        "missing": each(lambda one: list(one.missing)),
        "repinned": each(lambda one: one.repinned),
        "states": each(lambda one: one.states),
        "impossible": {name: str(error) for name, error in failed.items()},
    }


def lines(
    run_id: str,
    sample: Sample,
    context: int,
    measured: Mapping[Readout, Evaluation],
    failed: Mapping[Readout, ClientError],
) -> list[str]:
    """The figures for people."""
    from blockswarm.model.windows import context_rule

    text = [f"{run_id}{_rounds(measured)}: {sample}", f"  {context_rule(context)}"]
    text += [f"  {name:<9} {_figures(one)}" for name, one in measured.items()]
    return text + [f"  {name:<9} {_why_not(name, error)}" for name, error in failed.items()]


def _rounds(measured: Mapping[Readout, Evaluation]) -> str:
    """Which states were measured, by the rounds of the blocks'."""
    states = [one.states for one in measured.values() if one.states is not None]
    rounds = {block["round"] for pin in states for block in pin["blocks"].values()}
    if not rounds:
        return ""
    return f", round {min(rounds)}" if len(rounds) == 1 else f", rounds {min(rounds)} to {max(rounds)}"


def _figures(one: Evaluation) -> str:
    from blockswarm.swarm.subjects import subject_names

    score = one.score
    nats, bits = f"{score.nats_per_byte:.4f}", f"{score.bits_per_byte:.4f}"
    if score.ci95 is not None:
        nats += f" ± {score.ci95:.4f}"
        bits += f" ± {score.ci95 * score.bits_per_byte / score.nats_per_byte:.4f}"
    figures = f"{nats} nats/byte, {bits} bits/byte"
    if one.missing:
        figures += f", without {subject_names(one.missing)}, which nobody serves"
    if one.repinned:
        figures += ", of a mixture of states: the swarm let go of those it was begun with"
    return figures


def _why_not(readout: str, error: ClientError) -> str:
    from blockswarm.swarm.errors import DeadlineError

    if isinstance(error, DeadlineError):
        return f"not measured: {error}"
    block = getattr(error, "block", None)
    if block is None:
        return f"impossible: {error}"
    return f"impossible: it goes through every block, and nobody serves block {block}"
