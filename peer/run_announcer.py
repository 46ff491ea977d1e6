"""Telling newcomers and clients that a run exists: any peer they know then names it, and those who have its manifest.

A bootstrap node always does. Volunteers do as well, or nobody would find a run any more 45 seconds after its bootstrap
node is gone; but only a few at a time, so that a large swarm does not fill the list of runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Protocol

from blockswarm.clock import Clock
from blockswarm.dht.records import RunRecord
from blockswarm.peer.view import LOOKUP_SECONDS, RECORD_SECONDS
from blockswarm.swarm.manifest import Manifest

ENOUGH = 4
"""Volunteers that tell of a run at a time."""


class Directory(Protocol):
    """The part of `blockswarm.dht.directory.Directory` that is needed here."""

    async def announce_run(self, record: RunRecord) -> bool: ...

    async def runs(self) -> list[RunRecord]: ...


class Announcing(Protocol):
    """The part of a host that is needed here."""

    peer_id: str

    def addresses(self) -> list[str]: ...


async def keep_run_announced(
    directory: Directory, host: Announcing, manifest: Manifest, clock: Clock, *, always: bool
) -> None:
    """Announce the run for ever; unless ``always``, only while it is this peer's turn."""
    while True:
        async with asyncio.timeout(LOOKUP_SECONDS):
            if always or is_turn(host.peer_id, await directory.runs(), manifest.digest):
                await directory.announce_run(_record(host, manifest, clock.now()))
        await asyncio.sleep(RECORD_SECONDS / 3 * random.uniform(0.8, 1.0))


def is_turn(own_id: str, records: Iterable[RunRecord], digest: bytes) -> bool:
    """Whether fewer than ``ENOUGH`` peers with a lower id than ours tell of the run.

    Counting the lower ids only, those who tell go on while the others stop, and never all of them at once.
    """
    before = {record.peer_id for record in records if record.digest == digest and record.peer_id < own_id}
    return len(before) < ENOUGH


def _record(host: Announcing, manifest: Manifest, now: float) -> RunRecord:
    return RunRecord(
        run_id=manifest.run_id,
        name=manifest.name,
        digest=manifest.digest,
        peer_id=host.peer_id,
        addrs=tuple(host.addresses()[:8]),
        issued=now,
        expires=now + RECORD_SECONDS,
    )
