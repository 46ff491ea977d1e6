"""A bootstrap node: the first contact of newcomers. It serves the manifest and the directory, and trains nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from blockswarm.clock import SystemClock
from blockswarm.dht.addresses import is_loopback
from blockswarm.dht.directory import Directory
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.dht.peers_file import add_to_peers_file
from blockswarm.dht.records import RunRecord
from blockswarm.errors import BlockswarmError
from blockswarm.peer.config import BootstrapConfig
from blockswarm.peer.console import Console, log_to, open_console
from blockswarm.peer.serving import serve_manifest
from blockswarm.peer.state_dir import claim_state_dir
from blockswarm.peer.tasks import Supervisor
from blockswarm.peer.view import LOOKUP_SECONDS, RECORD_SECONDS
from blockswarm.swarm.manifest import Manifest

log = logging.getLogger(__name__)


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
    clock = SystemClock()
    with open_console(json_log=config.json_log, quiet=config.quiet) as console, log_to(console):
        host = await Host.start(
            identity,
            listen=list(config.listen),
            announce=list(config.announce),
            initial_peers=list(config.peers),
            run_digest=manifest.digest,
            known_peers=KnownPeers(config.state_dir / "known_peers.json"),
            clock=clock,
        )
        host.describe = lambda: {"runs": [{"run_id": manifest.run_id, "digest": manifest.digest}], "state": "BOOTSTRAP"}
        supervisor = Supervisor(lambda name, error: console.emit({"event": "warning", "message": f"{name}: {error}"}))
        try:
            serve_manifest(host, manifest)
            addresses = host.addresses()
            if config.peers_file is not None:
                for address in _worth_writing(addresses):
                    add_to_peers_file(config.peers_file, address)
            console.emit(
                {
                    "event": "ready",
                    "peer_id": host.peer_id,
                    "addrs": addresses,
                    "block": None,
                    "run_id": manifest.run_id,
                }
            )
            supervisor.forever("announcing the run", lambda: _announce(host, manifest, clock))
            return await _until_stopped(host, stop, console)
        finally:
            await supervisor.stop()
            await host.stop()


def _worth_writing(addresses: list[str]) -> list[str]:
    """The addresses for the peers file: those others can use; loopback only when there is nothing else."""
    reachable = [address for address in addresses if not is_loopback(address)]
    return reachable or addresses


async def _announce(host: Host, manifest: Manifest, clock: SystemClock) -> None:
    directory = Directory(host, manifest.run_id, clock)
    while True:
        now = clock.now()
        record = RunRecord(
            run_id=manifest.run_id,
            name=manifest.name,
            digest=manifest.digest,
            peer_id=host.peer_id,
            addrs=tuple(host.addresses()[:8]),
            issued=now,
            expires=now + RECORD_SECONDS,
        )
        async with asyncio.timeout(LOOKUP_SECONDS):
            await directory.announce_run(record)
        await asyncio.sleep(RECORD_SECONDS / 3)


async def _until_stopped(host: Host, stop: asyncio.Event, console: Console) -> int:
    waits: set[asyncio.Future[Any]] = {asyncio.create_task(stop.wait()), host.daemon_died}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits - {host.daemon_died}:
            wait.cancel()
    if host.daemon_died.done():
        raise BlockswarmError(f"the p2p host ended: {host.daemon_died.result()}")
    console.emit({"event": "stopped"})
    return 0
