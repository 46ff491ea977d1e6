"""``blockswarm init``: write the manifest of a new swarm."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli.options import PEERS_FILE, Function, PathType, json_output
from blockswarm.cli.output import print_json

if TYPE_CHECKING:
    from blockswarm.swarm.manifest import Manifest

MANIFEST = Path("swarm.toml")

ROUND_SECONDS = {"tiny": 10.0, "small": 30.0, "base": 120.0}
"""Default length of a round, s: enough to move an update of that size over a home uplink with time to spare."""


def manifest_options(function: Function) -> Function:
    """What a new manifest can be given; `bootstrap --init` takes the same."""
    for option in (
        click.option("--counts-weight", type=float, metavar="W", help="Share of these counts in the mixture, 0 to 1."),
        click.option(
            "--counts",
            type=PathType,
            metavar="FILE",
            help="N-gram counts to mix into what the blocks predict; made by `blockswarm count`.",
        ),
        click.option(
            "--compression", metavar="NAME", help="Encoding of updates: none, fp16, int8 or int4. [default: int4]"
        ),
        click.option("--outer", metavar="NAME", help="Outer optimizer: none or nesterov. [default: none]"),
        click.option(
            "--robust", metavar="NAME", help="Mean of updates: none, clip, trimmed or centered. [default: clip]"
        ),
        click.option("--seed", type=int, help="Seed of the initial parameters. [default: 0]"),
        click.option(
            "--round-seconds", type=float, metavar="S", help="Length of a round. [default: 10 tiny, 30 small, 120 base]"
        ),
        click.option(
            "--data", metavar="NAME", help="Corpus to train on: docs, hf:<dataset>[:config], or a name. [default: docs]"
        ),
        click.option(
            "--train-samples",
            type=int,
            metavar="N",
            help="Sequences after which a block is trained no more, only served; 0 = no end. [default: 0]",
        ),
        click.option("--recipe", metavar="NAME", help="Training recipe: default or paper. [default: default]"),
        click.option("--name", metavar="NAME", help="Name of the run, a-z 0-9 and -. [default: demo]"),
    ):
        function = option(function)
    return function


def new_manifest(size: str, options: dict[str, Any]) -> Manifest:
    """The manifest of a new swarm; options that were not given (None) keep their defaults."""
    from blockswarm.swarm.manifest import create_manifest

    given = {key: value for key, value in options.items() if value is not None}
    given |= given_counts(given.pop("counts", None), given.pop("counts_weight", None))
    return create_manifest(
        size=size, now=time.time(), **{"name": "demo", "round_seconds": ROUND_SECONDS.get(size, 10.0), **given}
    )


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write ``path``, which must not exist: a swarm's manifest is never overwritten.

    Raises
    ------
    GivenManifestError
        When the file exists.
    ManifestError
        When it cannot be written.
    """
    from blockswarm.files import write_atomically
    from blockswarm.swarm.errors import GivenManifestError, ManifestError

    try:
        write_atomically(path, manifest.to_toml().encode(), overwrite=False)
    except FileExistsError as error:
        raise GivenManifestError(
            f"{path}: exists already and is left as it is; choose another name with --output"
        ) from error
    except OSError as error:
        raise ManifestError(f"{path}: cannot be written: {error.strerror}") from error


def given_counts(path: Path | None, weight: float | None) -> dict[str, Any]:
    """What `create_manifest` is told of n-gram counts: nothing without a file.

    Raises
    ------
    click.UsageError
        When only one of the two is given.
    GivenManifestError
        When the file or the weight cannot be used.
    """
    if path is None and weight is None:
        return {}
    if path is None or weight is None:
        raise click.UsageError("--counts FILE and --counts-weight W belong together: `blockswarm count --fit` finds W")
    from blockswarm.swarm.counts.files import describe

    return {"counts": describe(path, weight)}


@click.command()
@click.option("--size", default="tiny", show_default=True, metavar="SIZE", help="Model size: tiny, small or base.")
@manifest_options
@click.option("--output", type=PathType, default=MANIFEST, show_default=True, help="File to write; never overwritten.")
@json_output
def command(size: str, output: Path, as_json: bool, **options: Any) -> None:
    """Write the manifest of a new swarm: all that its volunteers must agree on.

    \b
    Examples:
      blockswarm init --size tiny --name hello --round-seconds 15
      blockswarm init --counts counts.ngram --counts-weight 0.5
    """
    manifest = new_manifest(size, options)
    write_manifest(manifest, output)
    if as_json:
        print_json({"manifest": str(output), "run_id": manifest.run_id, "digest": manifest.digest.hex()})
    else:
        click.echo(f"wrote {output}: run {manifest.run_id}")
        other = "" if output == MANIFEST else f" --manifest {shlex.quote(str(output))}"
        click.echo(f"next: blockswarm bootstrap{other} --peers-file {PEERS_FILE}")
