"""How commands that only ask the swarm reach it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.options import peers_from

if TYPE_CHECKING:
    from blockswarm.swarm import SwarmClient

CONNECT_SECONDS = 20.0


@contextmanager
def connected(peers_file: Path | None, peer: tuple[str, ...], run_id: str | None) -> Iterator[SwarmClient]:
    """A client of the swarm the options name; its warnings come out as lines on stderr."""
    peers = peers_from(peers_file, peer)
    from blockswarm.swarm import SwarmClient

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
        with SwarmClient.connect(peers, run=run_id, timeout=CONNECT_SECONDS) as swarm:
            yield swarm
