"""The directory of one run in the DHT: who holds which block, how rounds ended, which runs there are.

Nothing here is trusted: what a search brings is verified record by record, expired and withdrawn ones are dropped, and
addresses of verified holders are passed to the host so that they can be called.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import time
from typing import TYPE_CHECKING

from blockswarm.clock import Clock
from blockswarm.dht import lookup
from blockswarm.dht.records import (
    MAX_LIFETIME,
    MAX_SHARDS,
    BlockRecord,
    ProgressRecord,
    Record,
    RunRecord,
    block_key,
    progress_key,
    runs_key,
    seal,
)

if TYPE_CHECKING:
    from blockswarm.dht.host import Host

logger = logging.getLogger(__name__)

LIFETIME = 60.0
"""Seconds a goodbye stays on record at least."""
SEARCH_SECONDS = 5.0
STORE_SECONDS = 8.0
OWN_SECONDS = 2.0
_STEP = 0.01
"""Seconds by which a replacing record outlives the one it replaces: the DHT keeps whichever expires last."""


class Directory:
    """One peer's view of, and entries in, the directory of a run.

    Parameters
    ----------
    host : Host
    run_id : str
    clock : Clock
        The swarm's time.
    shards : int
        Into how many keys the holders of a block are split, by peer id (from the manifest).
    """

    def __init__(self, host: Host, run_id: str, clock: Clock, *, shards: int = 1) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards must be 1 to {MAX_SHARDS}")
        self._host = host
        self._clock = clock
        self.run_id = run_id
        self.shards = shards
        self._announced: BlockRecord | None = None
        self._lock = asyncio.Lock()

    async def announce(self, record: BlockRecord) -> bool:
        """Enter this peer as a holder of a block, replacing its former entry (also one under another block).

        Parameters
        ----------
        record : BlockRecord
            Of this peer and run. Its ``expires`` is moved if need be so that it replaces what is on record.

        Returns
        -------
        bool
            Whether the DHT took it. Bounded to about 8 s, never raises for the network.

        Raises
        ------
        RecordError
            If the record belongs to somebody else or is too large.
        """
        async with self._lock:
            former, self._announced = self._announced, record
            if former is not None and former.block != record.block:
                await self._withdraw(former, record.issued, record.expires)
            return await self._publish(record)

    async def goodbye(self, record: BlockRecord | None = None) -> bool:
        """Withdraw this peer's entry, so that nobody waits for it.

        Parameters
        ----------
        record : BlockRecord, optional
            As for `announce`, whatever its state; default is what was announced last.
        """
        async with self._lock:
            former, self._announced = self._announced, None
            record = record or former
            if record is None:
                return True
            now = self._clock.now()
            return await self._withdraw(record, now, max(record.expires, now + LIFETIME))

    async def entries(self, block: int, *, timeout: float = SEARCH_SECONDS) -> list[BlockRecord]:
        """What every peer (this one included) said last of itself under ``block``, goodbyes too; by peer id.

        Addresses of those that are there are passed to the host. Time is bounded by ``timeout`` seconds; what was not
        found by then is missing, so a peer is not gone because it is not listed.
        """
        keys = [block_key(self.run_id, block, shard) for shard in range(self.shards)]
        found: dict[str, BlockRecord] = {}
        for records in await asyncio.gather(*(self._find(key, timeout) for key in keys)):
            for record in records:
                known = found.get(record.peer_id)
                # A peer writes to one shard only; after a change of their number an old entry may be left over.
                if isinstance(record, BlockRecord) and (known is None or known.issued < record.issued):
                    found[record.peer_id] = record
        for record in found.values():
            if record.state != "OFFLINE":
                self._host.learn(record.peer_id, record.addrs)
        return sorted(found.values(), key=lambda record: record.peer_id)

    async def announce_progress(self, record: ProgressRecord) -> bool:
        """Publish a round report of this peer; returns and raises as `announce` does."""
        async with self._lock:
            return await self._publish(record)

    async def progress(self, subject: int, *, timeout: float = SEARCH_SECONDS) -> list[ProgressRecord]:
        """Round reports on ``subject`` (a block, or -1 for the embedding) of all peers, newest round first."""
        records = await self._find(progress_key(self.run_id, subject), timeout)
        reports = [record for record in records if isinstance(record, ProgressRecord)]
        return sorted(reports, key=lambda record: (-record.round, record.peer_id))

    async def announce_run(self, record: RunRecord) -> bool:
        """Tell that this peer can give out the manifest of the run; returns and raises as `announce` does."""
        async with self._lock:
            return await self._publish(record)

    async def runs(self, *, timeout: float = SEARCH_SECONDS) -> list[RunRecord]:
        """All runs on record, one entry per peer that offers one; their peers' addresses are passed to the host."""
        return await find_runs(self._host, self._clock, timeout=timeout)

    def _shard(self) -> int:
        return hashlib.sha256(self._host.peer_id.encode()).digest()[0] % self.shards

    async def _withdraw(self, record: BlockRecord, issued: float, expires: float) -> bool:
        offline = BlockRecord(
            run_id=record.run_id,
            block=record.block,
            peer_id=record.peer_id,
            state="OFFLINE",
            round=record.round,
            issued=issued,
            expires=expires,
        )
        return await self._publish(offline)

    async def _find(self, key: str, timeout: float) -> list[Record]:
        return [record for _, record in await lookup.find(self._host.node, key, self._clock.now(), timeout=timeout)]

    async def _publish(self, record: Record) -> bool:
        shard = self._shard() if isinstance(record, BlockRecord) else 0
        key, published = record.key(shard), self._host.published
        if key not in published:
            # An earlier start of this peer may have left a record that outlives what we are about to write.
            await self._read_own_expiration(key)
        started = time.monotonic()
        while True:
            latest = record.issued + MAX_LIFETIME - 1.0
            expires = min(max(record.expires, published.get(key, 0.0) + _STEP), latest)
            stamped = dataclasses.replace(record, expires=expires)
            sealed = seal(self._host.identity, stamped, shard=shard)
            published[key] = expires
            left = STORE_SECONDS - (time.monotonic() - started)
            if await lookup.store(self._host.node, key, record.peer_id, sealed, expires, timeout=left):
                return True
            await self._read_own_expiration(key)
            if published[key] <= expires or expires >= latest:
                return False

    async def _read_own_expiration(self, key: str) -> None:
        published = self._host.published
        for record in await self._find(key, OWN_SECONDS):
            if record.peer_id == self._host.peer_id:
                published[key] = max(published.get(key, 0.0), record.expires)


async def find_runs(host: Host, clock: Clock, *, timeout: float = SEARCH_SECONDS) -> list[RunRecord]:
    """All runs on record in the DHT; needs no run of one's own, so a newcomer can choose. See `Directory.runs`."""
    found = await lookup.find(host.node, runs_key(), clock.now(), timeout=timeout)
    runs = [record for _, record in found if isinstance(record, RunRecord)]
    for record in runs:
        host.learn(record.peer_id, record.addrs)
    return sorted(runs, key=lambda record: (record.run_id, record.peer_id))
