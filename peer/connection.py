"""A peer's connection to its swarm: a running host, the manifest, and a view of who else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from blockswarm.clock import SystemClock
from blockswarm.dht.directory import Directory
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.dht.peers_file import names_nobody
from blockswarm.errors import BlockswarmError
from blockswarm.naming import option
from blockswarm.peer import joining
from blockswarm.peer.config import ConfigError, PeerConfig
from blockswarm.peer.forwarding import serve_forwarding
from blockswarm.peer.giving import serve_manifest
from blockswarm.peer.view import SwarmView
from blockswarm.swarm.manifest import Manifest

MEET_SOMEONE_SECONDS = 10.0
"""How long a newcomer with addresses to try waits for the first connection before it goes on without one."""

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Connection:
    """Everything a peer has before it takes a block. Made by `connect`; `Host.stop` ends it."""

    host: Host
    manifest: Manifest
    directory: Directory
    view: SwarmView
    clock: SystemClock
    counts_only: bool = False
    """Whether this peer serves the n-gram counts and trains nothing."""


async def start_host(config: PeerConfig, identity: Identity, clock: SystemClock) -> Host:
    """Start listening, and connecting to the known peers in the background.

    Raises
    ------
    UsageError
        When nobody is known and the manifest is not here either.
    DhtError
        When the host cannot start: a taken port, a bad address, an identity that is running already.
    """
    known = KnownPeers(config.state_dir / "known_peers.json")
    if not (
        config.peers or known.addrs() or config.manifest or joining.cached_manifest(config.state_dir, config.run_id)
    ):
        if config.peers_file is not None:
            raise names_nobody(config.peers_file)
        peers, manifest = option("peers", flag="--peer"), option("manifest")
        raise ConfigError(f"there is nobody to ask for the manifest: name a peer with {peers}, or give {manifest}")
    return await Host.start(
        identity,
        listen=list(config.listen),
        announce=list(config.announce),
        initial_peers=list(config.peers),
        known_peers=known,
        clock=clock,
    )


async def daemon_died(host: Host) -> NoReturn:
    """Wait for the end of what ``host`` cannot go on without.

    Raises
    ------
    BlockswarmError
        When it has come; says what ended and why.
    """
    reason = await asyncio.shield(host.daemon_died)
    raise BlockswarmError(f"the p2p host ended: {reason}")


async def connect(host: Host, config: PeerConfig, given: Manifest | None, clock: SystemClock, emit: Emit) -> Connection:
    """Meet others, find the manifest unless it is ``given``, compare clocks, and join the run on ``host``.

    Raises
    ------
    BlockswarmError
        For a manifest, a clock or a block number that cannot work.
    """
    await _meet_someone(host, emit)
    manifest = given or await _find_manifest(host, config, emit)
    joining.cache_manifest(config.state_dir, manifest)
    joining.check_block(config.block, manifest)
    counts_only = joining.counts_only(config.block, manifest)
    joining.check_memory(manifest, counts_only=counts_only)
    if counts_only and config.block is None:
        emit(_info("there is too little memory here to train a block: this peer serves the n-gram counts"))
    await joining.check_clock(host, clock, manifest.rounds.tolerance)
    host.set_run(manifest.digest)
    serve_manifest(host, manifest)
    serve_forwarding(host)
    directory = Directory(host, manifest.run_id, clock, shards=manifest.limits.directory_shards)
    view = SwarmView(directory, manifest, host.peer_id, clock)
    return Connection(host, manifest, directory, view, clock, counts_only)


async def _meet_someone(host: Host, emit: Emit) -> None:
    """Wait a moment for the first of the known peers; with nobody known there is nothing to wait for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + (MEET_SOMEONE_SECONDS if len(host.book) else 0.0)
    while not host.connected_peers() and loop.time() < end:  # noqa: ASYNC110 - the host offers no event for it
        await asyncio.sleep(0.1)
    if len(host.book) and not host.connected_peers():
        emit(_info("none of the known peers answers yet; going on, and trying again in the background"))


async def _find_manifest(host: Host, config: PeerConfig, emit: Emit) -> Manifest:
    cached = None if host.connected_peers() else joining.cached_manifest(config.state_dir, config.run_id)
    return cached or await joining.find_manifest(host, config.run_id, tell=lambda text: emit(_info(text)))


def _info(message: str) -> dict[str, Any]:
    return {"event": "info", "message": message}
