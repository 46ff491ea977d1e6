"""What the blocking and the asyncio client share: connecting, options, and what can be told without waiting."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path

from blockswarm.dht.addresses import split_peer
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.dht.peers_file import names_nobody, read_peers_file
from blockswarm.swarm.core import Core
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.report import CallReport, ClientStats, Event, IncompleteAnswerWarning
from blockswarm.swarm.subjects import subject_names
from blockswarm.swarm.thread import TrioThread

Peers = str | Path | Sequence[str]

CONNECT_TIMEOUT = 30.0
"""Seconds to find a swarm; it takes one or two unless the first peers are dead."""

CLOSE_SECONDS = 2.0
"""Closing takes no longer, whatever the peers do."""


class ClientBase:
    """A thread with a :class:`Core` in it.

    Parameters
    ----------
    thread, core
        Started and connected.
    """

    def __init__(self, thread: TrioThread, core: Core) -> None:
        self._thread = thread
        self._core = core
        # Runs at interpreter exit too, and when the client is forgotten: no socket outlives it.
        self._finalizer = weakref.finalize(self, close, thread, core)

    @property
    def manifest(self) -> Manifest:
        """What the swarm's volunteers agree on, verified against the run's digest."""
        return self._core.manifest

    @property
    def run_id(self) -> str:
        """The run this client is connected to."""
        return self._core.manifest.run_id

    @property
    def stats(self) -> ClientStats:
        """Totals so far, and how the latest call went (its seed, pinned states, missing blocks)."""
        return copy.deepcopy(self._core.counters())

    @property
    def events(self) -> list[Event]:
        """What happened along the way, oldest first: replaced holders, re-pins, missing blocks, refused answers."""
        return list(self._core.events)

    @property
    def known_peers(self) -> list[str]:
        """Addresses of peers that were met, for connecting again when the first ones are gone."""
        return [address for addresses in self._core.book.addresses().values() for address in addresses]


def start() -> tuple[TrioThread, Core]:
    """A fresh thread and an unconnected core in it."""
    thread = TrioThread()
    return thread, Core(thread.nursery)


def close(thread: TrioThread, core: Core) -> None:
    """Drop all connections and end the thread, within ``CLOSE_SECONDS``."""
    if not thread.closed:
        with contextlib.suppress(Exception):
            thread.submit(core.link.close).result(CLOSE_SECONDS / 2)
    thread.close(CLOSE_SECONDS / 2)


def read_peers(peers: Peers, cache: KnownPeers | None = None) -> list[tuple[str, str]]:
    """Peer ids and addresses from a peers file, one multiaddr, or several; after them those of an earlier time.

    Raises
    ------
    ArgumentError
        When there is none.
    PeersFileError, AddressError
        When one is malformed, or a peers file names nobody.
    """
    if isinstance(peers, str) and peers.startswith("/") and "/p2p/" in peers:
        addresses = [peers]
    elif isinstance(peers, str | Path):
        addresses = read_peers_file(Path(peers))
    else:
        addresses = list(peers)
    if cache is not None:
        addresses = [*addresses, *cache.addrs()]
    if not addresses:
        if isinstance(peers, str | Path):
            raise names_nobody(peers)
        raise ArgumentError("peers: the list names no peer: give at least one multiaddr ending in /p2p/PEER")
    return [(split_peer(address)[1], address) for address in addresses]


def open_cache(path: str | Path | None) -> KnownPeers | None:
    """The file in which a client remembers whom it has met, if it was given one."""
    return None if path is None else KnownPeers(path)


def fill_cache(cache: KnownPeers | None, core: Core) -> None:
    """Remember the peers met, for a time when those one began with are gone."""
    if cache is not None:
        for addresses in core.book.addresses().values():
            cache.remember(addresses)
        cache.save()


def warn_incomplete(report: CallReport | None, *, told: int = 0, level: int = 3) -> int:
    """Warn about blocks an answer did without, unless ``told`` of them were warned about before; returns how many."""
    missing = report.missing if report is not None else []
    if len(missing) > told:
        warnings.warn(
            f"answered without {subject_names(missing)}: nobody serves it", IncompleteAnswerWarning, stacklevel=level
        )
    return len(missing)
