"""How commands that only ask a model reach it: in the swarm, or in a folder on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockswarm.cli.options import PEERS_FILE, STATE_ROOT, peers_from

if TYPE_CHECKING:
    from blockswarm.swarm import Deadline, LocalModel, SwarmClient

CONNECT_SECONDS = 30.0
MET_PEERS = STATE_ROOT / "met_peers.json"
"""Where a folder's commands remember peers they met, so that they find the swarm when its bootstrap nodes are gone."""


@contextmanager
def connected(
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    deadline: Deadline | None = None,
    counts: Path | None = None,
) -> Iterator[SwarmClient]:
    """A client of the swarm the options name; its warnings come out as lines on stderr.

    Raises
    ------
    UsageError
        When a peers file or an address cannot be used, or they name nobody.
    ConnectError
        When nobody answers, in ``CONNECT_SECONDS`` or in what is left of ``deadline``.
    """
    peers, cache = known_peers(peers_file, peer)
    from blockswarm.swarm import SwarmClient

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
        seconds = CONNECT_SECONDS if deadline is None else min(CONNECT_SECONDS, deadline.left())
        with SwarmClient.connect(peers, run=run_id, timeout=seconds, cache=cache, counts=counts) as swarm:
            yield swarm


@contextmanager
def asked_model(
    checkpoint: Path | None,
    device: str | None,
    threads: int | None,
    peers_file: Path | None,
    peer: tuple[str, ...],
    run_id: str | None,
    deadline: Deadline | None = None,
    counts: Path | None = None,
) -> Iterator[SwarmClient | LocalModel]:
    """The model in the folder ``checkpoint``, reached without a network; without one the swarm's."""
    if checkpoint is None:
        if device is not None or threads is not None:
            raise click.UsageError("--device and --threads are for a model of one's own: give --checkpoint too")
        with connected(peers_file, peer, run_id, deadline, counts) as swarm:
            yield swarm
        return
    if peers_file is not None or peer or run_id is not None or counts is not None:
        raise click.UsageError("--checkpoint needs no swarm: leave out --peers-file, --peer, --run and --counts")
    from blockswarm.swarm import LocalModel

    with LocalModel.open(checkpoint, device=device or "auto", threads=threads or 1) as model:
        yield model


def known_peers(peers_file: Path | None, peer: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
    """Whom the options name, and the file of those met earlier, if there is a place for it.

    Raises
    ------
    UsageError
        When a peers file or an address cannot be used, or they name nobody.
    """
    from blockswarm.dht.known_peers import KnownPeers
    from blockswarm.dht.peers_file import names_nobody

    peers = peers_from(peers_file, peer)
    cache = MET_PEERS if STATE_ROOT.is_dir() else None  # asking makes no folders
    if not peers and (cache is None or not KnownPeers(cache).addrs()):
        raise names_nobody(peers_file or PEERS_FILE)
    return peers, cache
