"""A bootstrap node: the first contact of newcomers. It serves the manifest and the directory, and trains nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import NoReturn

from blockswarm.clock import SystemClock
from blockswarm.dht.addresses import is_loopback
from blockswarm.dht.directory import Directory
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.dht.peers_file import add_to_peers_file
from blockswarm.peer.config import BootstrapConfig
from blockswarm.peer.connection import daemon_died
from blockswarm.peer.console import Console, log_to, open_console
from blockswarm.peer.footprint import release_startup_pages
from blockswarm.peer.forwarding import serve_forwarding
from blockswarm.peer.giving import serve_manifest
from blockswarm.peer.run_announcer import keep_run_announced
from blockswarm.peer.state_dir import claim_state_dir
from blockswarm.peer.tasks import Supervisor, first_of
from blockswarm.swarm.manifest import Manifest

SETTLING_SECONDS = 3.0
"""Time until the first announcement is made; whatever is imported or bound when first used is in use by then."""


async def run_bootstrap(config: BootstrapConfig, stop: asyncio.Event) -> int:
    """Run a bootstrap node until ``stop`` is set; the exit code.

    Raises
    ------
    BlockswarmError
        When it cannot start: bad manifest, taken port, unusable identity or folder.
    """
    manifest = Manifest.load(config.manifest)
    claim_state_dir(config.state_dir)
    identity = Identity.load_or_create(config.identity or config.state_dir / "identity.key")
    with open_console(json_log=config.json_log, quiet=config.quiet) as console, log_to(console):
        async with AsyncExitStack() as parts:
            await first_of(_live(config, manifest, identity, console, parts), stop.wait())
            console.emit({"event": "stopped", "reason": ""})
        console.emit({"event": "left", "state_dir": str(config.state_dir)})
    return 0


async def _live(
    config: BootstrapConfig, manifest: Manifest, identity: Identity, console: Console, parts: AsyncExitStack
) -> NoReturn:
    """Start the node and let it work; what must be ended after it goes to ``parts``."""
    clock = SystemClock()
    host = await Host.start(
        identity,
        listen=list(config.listen),
        announce=list(config.announce),
        initial_peers=list(config.peers),
        run_digest=manifest.digest,
        known_peers=KnownPeers(config.state_dir / "known_peers.json"),
        clock=clock,
    )
    parts.push_async_callback(host.stop)
    host.describe = lambda: {"runs": [{"run_id": manifest.run_id, "digest": manifest.digest}], "state": "BOOTSTRAP"}
    serve_manifest(host, manifest)
    serve_forwarding(host)
    addresses = host.addresses()
    if config.peers_file is not None:
        for address in _worth_writing(addresses):
            add_to_peers_file(config.peers_file, address)
    console.emit(
        {"event": "ready", "peer_id": host.peer_id, "addrs": addresses, "block": None, "run_id": manifest.run_id}
    )
    supervisor = Supervisor(lambda name, error: console.emit({"event": "warning", "message": f"{name}: {error}"}))
    parts.push_async_callback(supervisor.stop)
    directory = Directory(host, manifest.run_id, clock)
    supervisor.forever("announcing the run", lambda: keep_run_announced(directory, host, manifest, clock, always=True))
    supervisor.once("giving back memory", _give_back_memory())
    await daemon_died(host)


async def _give_back_memory() -> None:
    """Once this node has settled it needs little of what hivemind imported, torch above all."""
    await asyncio.sleep(SETTLING_SECONDS)
    release_startup_pages()


def _worth_writing(addresses: list[str]) -> list[str]:
    """The addresses for the peers file: those others can use; loopback only when there is nothing else."""
    reachable = [address for address in addresses if not is_loopback(address)]
    return reachable or addresses
