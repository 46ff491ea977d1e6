"""How commands that only ask the swarm reach it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.options import STATE_ROOT, peers_from

if TYPE_CHECKING:
    from blockswarm.swarm import SwarmClient

CONNECT_SECONDS = 30.0
MET_PEERS = STATE_ROOT / "met_peers.json"
"""Where a folder's commands remember peers they met, so that they find the swarm when its bootstrap nodes are gone."""


@contextmanager
def connected(peers_file: Path | None, peer: tuple[str, ...], run_id: str | None) -> Iterator[SwarmClient]:
    """A client of the swarm the options name; its warnings come out as lines on stderr."""
    peers = peers_from(peers_file, peer)
    from blockswarm.swarm import SwarmClient

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
        cache = MET_PEERS if STATE_ROOT.is_dir() else None  # asking makes no folders
        with SwarmClient.connect(peers, run=run_id, timeout=CONNECT_SECONDS, cache=cache) as swarm:
            yield swarm
