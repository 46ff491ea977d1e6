"""Entering a swarm: its manifest from any peer, the clock against others', a block, and the newest state of it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.records import is_run_id
from blockswarm.dht.rpc import Reply
from blockswarm.errors import BlockswarmError
from blockswarm.files import write_atomically
from blockswarm.naming import option
from blockswarm.peer.config import ConfigError
from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest import COUNTS, Manifest
from blockswarm.swarm.manifest_fields import MAX_MANIFEST_BYTES
from blockswarm.swarm.memory import counts_estimate, memory_estimate
from blockswarm.swarm.policy.placement import Replica, choose_block, join_delay, replicas_on_record, settle

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0
RETRY_SECONDS = 3.0
"""Pause between two attempts to reach anyone who knows the run."""

ANNOUNCE_SETTLES_SECONDS = 1.5
"""Time for announcements of others who join at the same instant to reach the directory."""

MOST_UNKNOWN = 3
"""Looks in a row at which peers named other runs, but not the one asked for, before it counts as unknown."""

MOST_RECHECKS = 3
"""A newcomer looks again after announcing at most this often."""


class JoinError(BlockswarmError):
    """The swarm cannot be joined as asked."""


class Network(Protocol):
    """The part of a host that joining needs."""

    async def call(
        self, peer_id: str, method: str, body: Mapping[str, Any], *, max_blob: int = ..., timeout: float
    ) -> Reply:
        """See `blockswarm.dht.host.Host.call`."""
        ...

    def connected_peers(self) -> list[str]:
        """Peer ids with a live connection."""
        ...

    async def measure_offset(self, peers: Sequence[str]) -> float | None:
        """Median clock offset against ``peers`` in seconds; ``None`` when nobody answered."""
        ...


@dataclass(frozen=True)
class KnownRun:
    """A run that some peer speaks of."""

    run_id: str
    digest: bytes
    peer_id: str


async def find_manifest(network: Network, run_id: str | None, *, tell: Callable[[str], None]) -> Manifest:
    """Ask connected peers for runs and fetch the manifest of ours; tries on for as long as nobody answers.

    Raises
    ------
    ConfigError
        When the peers know several runs and none was named.
    JoinError
        When they know others than the one that was.
    """
    unknown = 0
    while True:
        runs: dict[str, list[KnownRun]] = {}
        for peer_id in network.connected_peers():
            for run in await _runs_of(network, peer_id):
                runs.setdefault(run.run_id, []).append(run)
        if run_id is None and len(runs) > 1:
            one = option("run_id", "ID", flag="--run")
            raise ConfigError(f"the peers know several runs: {', '.join(sorted(runs))}; choose one with {one}")
        wanted = run_id or next(iter(runs), None)
        for run in runs.get(wanted or "", []):
            manifest = await _fetch_manifest(network, run)
            if manifest is not None:
                return manifest
        # Once is no proof: the peer of our run may be the one that has not answered yet.
        unknown = unknown + 1 if runs and wanted not in runs else 0
        if unknown >= MOST_UNKNOWN:
            named = f"{option('run_id', flag='--run')} {run_id}"
            known = ", ".join(sorted(runs))
            raise JoinError(f"{named}: the peers know only {known}: check the run id, or name a peer of it")
        what = f"run {run_id}" if run_id else "any run"
        tell(f"no reachable peer knows {what} yet; still trying")
        await asyncio.sleep(RETRY_SECONDS)


async def _runs_of(network: Network, peer_id: str) -> list[KnownRun]:
    try:
        reply = await network.call(peer_id, "hello", {}, timeout=CALL_SECONDS)
    except RpcError as error:
        log.debug("%s does not say hello: %s", peer_id, error)
        return []
    runs = reply.body.get("runs")
    return [
        KnownRun(entry["run_id"], entry["digest"], peer_id)
        for entry in (runs[:16] if isinstance(runs, list) else [])
        if isinstance(entry, dict) and is_run_id(entry.get("run_id")) and isinstance(entry.get("digest"), bytes)
    ]


async def _fetch_manifest(network: Network, run: KnownRun) -> Manifest | None:
    try:
        reply = await network.call(
            run.peer_id, "manifest", {"run_id": run.run_id}, max_blob=MAX_MANIFEST_BYTES, timeout=CALL_SECONDS
        )
        manifest = Manifest.from_canonical(bytes(reply.blob), source=f"manifest from {run.peer_id}")
    except (RpcError, ManifestError) as error:
        log.warning("%s gave no usable manifest of %s: %s", run.peer_id, run.run_id, error)
        return None
    if manifest.run_id != run.run_id or manifest.digest != run.digest:
        log.warning("%s gave a manifest that is not of %s", run.peer_id, run.run_id)
        return None
    return manifest


def cached_manifest(folder: Path, run_id: str | None) -> Manifest | None:
    """The manifest this state folder was used with, if it is the run asked for."""
    path = folder / "swarm.toml"
    if not path.exists():
        return None
    manifest = Manifest.load(path)
    return manifest if run_id in (None, manifest.run_id) else None


def cache_manifest(folder: Path, manifest: Manifest) -> None:
    """Keep the manifest in the state folder, so that a restart needs nobody to know the run."""
    path = folder / "swarm.toml"
    text = manifest.to_toml()
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text.encode())


async def check_clock(network: Network, clock: SystemClock, tolerance: float) -> float:
    """Measure this machine's clock against connected peers and correct small errors.

    Returns
    -------
    float
        The measured offset in seconds; 0 when there is nobody to compare with.

    Raises
    ------
    JoinError
        When the offset is beyond the manifest's tolerance: rounds would make no sense.
    """
    peers = network.connected_peers()[:8]
    offset = await network.measure_offset(peers) if peers else None
    if offset is None:
        return 0.0
    if abs(offset) > tolerance:
        ahead = "behind" if offset > 0 else "ahead of"
        raise JoinError(
            f"this machine's clock is {abs(offset):.1f} s {ahead} the swarm's (at most {tolerance:g} s is allowed): "
            "set the clock, for example with NTP, and join again"
        )
    clock.offset += offset
    return offset


def check_memory(manifest: Manifest, *, counts_only: bool = False) -> None:
    """Raise `JoinError` with the numbers when a block, or the counts, do not fit into this machine's free memory."""
    estimate = counts_estimate() if counts_only else memory_estimate(manifest)
    available = psutil.virtual_memory().available
    if estimate.total > available:
        what = "serving the n-gram counts" if counts_only else "one block"
        raise JoinError(
            f"{what} of {manifest.run_id} needs {estimate}, but only {available / 1e6:,.0f} MB of memory are free: "
            "free some, or join a run with smaller blocks"
        )


def counts_only(block: int | None, manifest: Manifest) -> bool:
    """Whether this peer serves the n-gram counts: asked to, or free to choose and without the memory for a block."""
    if block is not None or manifest.counts is None:
        return block == COUNTS
    return bool(memory_estimate(manifest).total > psutil.virtual_memory().available)


def check_block(block: int | None, manifest: Manifest) -> None:
    """Raise `ConfigError` when ``block`` is one that the model does not have."""
    if block == COUNTS:
        if manifest.counts is None:
            raise ConfigError(f"{option('block', 'counts')}: {manifest.run_id} has no n-gram counts")
    elif block is not None and block >= manifest.model.blocks:
        raise ConfigError(f"{option('block')} {block}: {manifest.run_id} has blocks 0 to {manifest.model.blocks - 1}")


async def choose(
    manifest: Manifest,
    own_id: str,
    *,
    records: Callable[[], Iterable[Any]],
    refresh: Callable[[], Awaitable[object]],
    announce: Callable[[int], Awaitable[None]],
    now: Callable[[], float],
    prefer: int | None,
    rng: random.Random,
) -> int:
    """Choose the block that needs us most, announce it, and look again for others who did so at the same time.

    Parameters
    ----------
    manifest : Manifest
        The run.
    own_id : str
        This peer.
    records, refresh : callable
        Directory records of all blocks as last seen, and a new look at them.
    announce : callable
        Puts this peer's record for a block into the directory.
    now : callable
        Unix seconds.
    rng : random.Random
        Of the delays that keep newcomers apart.
    prefer : int or None
        Block of an earlier session whose checkpoint is here: taken unless another block is bare.
    """
    blocks = manifest.model.blocks

    def replicas() -> list[Replica]:
        return replicas_on_record(records(), now())

    await asyncio.sleep(join_delay(rng))
    await refresh()
    held = {replica.block for replica in replicas() if replica.peer_id != own_id}
    if prefer is not None and (prefer not in held or len(held) == blocks):
        await announce(prefer)
        return prefer
    block = choose_block(blocks, replicas(), own_id=own_id)
    await announce(block)
    for _ in range(MOST_RECHECKS):
        await asyncio.sleep(ANNOUNCE_SETTLES_SECONDS + join_delay(rng, 0.5))
        await refresh()
        better = settle(blocks, replicas(), own_id=own_id, own_block=block)
        if better == block:
            break
        block = better
        await announce(block)
    return block
