"""``blockswarm identity``: make or show the identity of a peer."""

from __future__ import annotations

from pathlib import Path

import click

from blockswarm.cli.options import PathType, json_output
from blockswarm.cli.output import print_json


@click.command()
@click.argument("file", type=PathType)
@json_output
def command(file: Path, as_json: bool) -> None:
    """Show the peer id in identity FILE; make the file (readable by you alone) if it is missing.

    Whoever has this file is the peer. It is never overwritten.

    \b
    Example:
      blockswarm identity my.key
    """
    from blockswarm.dht.identity import Identity

    created = not file.exists()
    identity = Identity.load_or_create(file)
    if as_json:
        print_json(
            {
                "file": str(file),
                "peer_id": identity.peer_id,
                "public_key": identity.public_key.hex(),
                "created": created,
            }
        )
    else:
        click.echo(f"{'made' if created else 'found'} {file}: peer id {identity.peer_id}")
