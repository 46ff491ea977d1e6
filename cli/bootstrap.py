"""``blockswarm bootstrap``: run a bootstrap node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockswarm.cli.init import MANIFEST, manifest_options, new_manifest, write_manifest
from blockswarm.cli.options import PathType, hosting, parsed_peers, state_dir_from
from blockswarm.cli.running import run_until_stopped

if TYPE_CHECKING:
    from blockswarm.swarm.manifest import Manifest


@click.command()
@click.option("--init", "size", metavar="SIZE", help="Make the manifest first, if it is missing: tiny, small or base.")
@click.option("--manifest", type=PathType, default=MANIFEST, show_default=True, help="Manifest to serve to newcomers.")
@click.option("--peers-file", type=PathType, metavar="FILE", help="File to add this node's address to, for newcomers.")
@click.option("--peer", "peer", multiple=True, metavar="MULTIADDR", help="Another peer to connect to. Repeatable.")
@manifest_options
@hosting
def command(
    size: str | None,
    manifest: Path,
    peers_file: Path | None,
    peer: tuple[str, ...],
    listen: tuple[str, ...],
    state_dir: Path | None,
    identity: Path | None,
    announce: tuple[str, ...],
    json_log: str | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Run a bootstrap node: newcomers meet the swarm and get its manifest there. It trains nothing.

    Nothing depends on it once peers know each other: it may stop, and any peer can be a newcomer's first contact.

    \b
    Example:
      blockswarm bootstrap --init tiny --peers-file bootstrap_peers.txt
    """
    from blockswarm.peer.config import BootstrapConfig

    peers = parsed_peers(peer)
    ensure_manifest(manifest, size, options)
    config = BootstrapConfig(
        state_dir=state_dir_from(state_dir, "bootstrap"),
        manifest=manifest,
        peers_file=peers_file,
        peers=peers,
        identity=identity,
        listen=listen or BootstrapConfig.listen,
        announce=announce,
        json_log=json_log,
        quiet=quiet,
    )

    async def program(stop: asyncio.Event) -> int:
        from blockswarm.peer.bootstrap import run_bootstrap

        return await run_bootstrap(config, stop)

    return run_until_stopped(program)


def ensure_manifest(path: Path, size: str | None, options: dict[str, Any]) -> None:
    """Make the manifest ``path`` of ``size`` if it is missing; if it is there, say so, unless it is of another swarm.

    Raises
    ------
    GivenManifestError
        When the file differs from what the options ask for, or is missing and ``size`` is not given.
    """
    from blockswarm.model.config import SIZES, recipe_name
    from blockswarm.swarm.errors import GivenManifestError
    from blockswarm.swarm.manifest import Manifest

    if size is None and (given := [name for name, value in options.items() if value is not None]):
        raise click.UsageError(f"{flag_of(given[0])} belongs to a new manifest: give --init SIZE too")
    if size is None or path.exists():
        found = Manifest.load(path)
        if size is None:
            return
        known = {
            "name": found.name,
            "recipe": recipe_name(found.recipe),
            "train_samples": found.recipe.train_samples,
            "data": found.data.name,
            "round_seconds": found.rounds.seconds,
            "seed": found.seed,
            "compression": found.averaging.compression,
            "outer": found.averaging.outer,
            "robust": found.averaging.robust,
            "counts": options["counts"] if _has_counts(found, options.get("counts")) else None,
            "counts_weight": found.counts.weight if found.counts is not None else None,
        }
        # Only what was asked for counts; a default is no wish.
        different = ["--init"] if SIZES.get(size) != found.model else []
        different += [flag_of(name) for name, value in options.items() if value is not None and value != known[name]]
        if different:
            raise GivenManifestError(
                f"{path}: already describes another swarm ({found.run_id}; {', '.join(different)} differs): "
                "leave out --init to serve it, or name a new file with --manifest"
            )
        click.echo(f"using {path}, which exists: run {found.run_id}", err=True)
        return
    made = new_manifest(size, options)
    write_manifest(made, path)
    click.echo(f"wrote {path}: run {made.run_id}", err=True)


def _has_counts(manifest: Manifest, path: Path | None) -> bool:
    """Whether ``path`` is the file of the run's n-gram counts."""
    from blockswarm.swarm.counts.files import CountsError, open_counts

    if path is None or manifest.counts is None:
        return False
    try:
        open_counts(path, manifest.counts)
    except CountsError:
        return False
    return True


def flag_of(name: str) -> str:
    """The flag of the option that click calls ``name``."""
    return "--" + name.replace("_", "-")
