"""``blockswarm count``: the n-gram counts of a text, as a file that a swarm mixes into its predictions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli.byte_progress import progress_bar
from blockswarm.cli.options import PathType, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.model.ngram import NgramModel
    from blockswarm.swarm.counts.building import Fit
    from blockswarm.swarm.evaluation import Sample

OUTPUT = Path("counts.ngram")
CONTEXT = 128
"""Context that a text is split by, unless a checkpoint names its own; the split is the same for all usual ones."""

FIT_BYTES = 1 << 15
"""Bytes that the weight is fitted on: 32 stretches."""


@click.command()
@click.option("--data", default="docs", show_default=True, metavar="SPEC", help="Text to count, as for `join`.")
@click.option(
    "--part",
    type=click.Choice(["train", "all"]),
    default="train",
    show_default=True,
    help="What volunteers train on, or all of it, which leaves nothing held out to measure on.",
)
@click.option("--order", type=int, default=8, show_default=True, metavar="N", help="Most bytes of context, 1 to 8.")
@click.option(
    "--min-count",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Leave out contexts seen fewer times: a smaller file, and often a better one.",
)
@click.option("--max-mb", type=float, metavar="MB", help="Raise --min-count as far as it takes for the file to fit.")
@click.option("--valid", type=PathType, metavar="FILE", help="Measure on this text. [default: the held-out part]")
@click.option(
    "--fit",
    "checkpoint",
    type=PathType,
    metavar="FOLDER",
    help="Also find the weight at which the counts help the model in FOLDER most, on the same text.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1024, 1 << 17),
    default=FIT_BYTES,
    show_default=True,
    metavar="N",
    help="With --fit: most bytes to predict.",
)
@click.option("--output", type=PathType, default=OUTPUT, show_default=True, help="File to write; never overwritten.")
@json_output
def command(
    data: str,
    part: str,
    order: int,
    min_count: int,
    max_mb: float | None,
    valid: Path | None,
    checkpoint: Path | None,
    max_bytes: int,
    output: Path,
    as_json: bool,
) -> None:
    """Count what follows every context of a text, once for a whole swarm: `init --counts` takes the file.

    \b
    Examples:
      blockswarm count --data my-texts/ --order 6 --min-count 3
      blockswarm count --data docs --fit my-model --output docs.ngram
    """
    from blockswarm.swarm.counts.building import count_into, held_out, weigh
    from blockswarm.swarm.manifest import Manifest
    from blockswarm.swarm.model_folder import MANIFEST_FILE

    # What cannot be used is told before the counting, which may take minutes.
    manifest = None if checkpoint is None else Manifest.load(checkpoint / MANIFEST_FILE)
    context = CONTEXT if manifest is None else manifest.model.context
    sample = held_out(data, part, valid, context=context, max_bytes=max_bytes)
    began = time.perf_counter()
    with progress_bar("counting") as progress:
        model = count_into(
            output, data, part, context=context, order=order, min_count=min_count, max_mb=max_mb, progress=progress
        )
    told: dict[str, Any] = {
        "file": str(output),
        "bytes": model.size,
        "digest": model.digest.hex(),
        "order": model.header.order,
        "min_count": model.header.min_count,
        "counted_bytes": model.header.corpus_bytes,
        "seconds": round(time.perf_counter() - began, 2),
        "nats_per_byte": None,
        "fit": None,
    }
    if not as_json:
        click.echo("\n".join(lines(told)))
    fit: Fit | None = None
    if sample is not None:
        told["nats_per_byte"] = _measure(model, sample, quiet=as_json)
        if checkpoint is not None:
            fit = weigh(model, checkpoint, sample)
            told["fit"] = vars(fit)
    if as_json:
        print_json(told)
    elif fit is not None:
        click.echo("\n".join(fit_lines(fit, output)))


def lines(told: dict[str, Any]) -> list[str]:
    """The file for people."""
    return [
        f"wrote {told['file']}: order {told['order']}, min count {told['min_count']}, {told['bytes'] / 1e6:.1f} MB "
        f"from {told['counted_bytes'] / 1e6:.1f} MB of text in {told['seconds']:.1f} s",
        f"  digest {told['digest']}",
    ]


def fit_lines(fit: Fit, output: Path) -> list[str]:
    """The weight for people, and what to do with it."""
    next_step = (
        f"next: blockswarm init --counts {output} --counts-weight {fit.weight:.3f}"
        if 0.0005 < fit.weight < 0.9995
        else f"the {'counts' if fit.weight < 0.5 else 'blocks'} add nothing to the others: a mixture is of no use"
    )
    return [
        f"on {fit.bytes:,} bytes: blocks {fit.blocks:.4f}, counts {fit.counts:.4f}, mixed {fit.mixed:.4f} nats/byte at "
        f"weight {fit.weight:.3f}",
        next_step,
    ]


def _measure(model: NgramModel, sample: Sample, *, quiet: bool) -> float:
    import numpy as np

    from blockswarm.model.scoring import score_of

    score = score_of(model.byte_log_probs(np.frombuffer(sample.text, np.uint8)))
    if not quiet:
        error = "" if score.ci95 is None else f" ± {score.ci95:.4f}"
        name = f"the held-out part of {sample.name}" if sample.part == "heldout" else sample.name
        click.echo(f"  all {score.bytes:,} bytes of {name}: {score.nats_per_byte:.4f}{error} nats/byte")
    return score.nats_per_byte
