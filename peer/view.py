"""What a peer knows of the others: records of every block, refreshed in the background, and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import blockswarm
from blockswarm.clock import Clock
from blockswarm.dht.errors import DhtError
from blockswarm.dht.records import BlockRecord, ProgressRecord
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.policy.asking import look_seconds

log = logging.getLogger(__name__)

RECORD_SECONDS = 45.0
"""Life of a record: a peer that vanishes is off the books after this. A refresh comes at a third of it."""

MIN_PAUSE = 0.2
"""Shortest time between two rounds of looks, however they fall due."""

LOOKUP_SECONDS = 8.0
"""A look at the directory that takes longer is given up; the next one comes soon."""

MET_ROUNDS = 2.0
"""Rounds for which a replica that was met is called again, though its record is not to be found."""

MOST_RECORDS = 1024
"""Records kept of a block, the newest ones."""


class Directory(Protocol):
    """The part of `blockswarm.dht.directory.Directory` that is needed here."""

    async def announce(self, record: BlockRecord) -> bool: ...

    async def goodbye(self, record: BlockRecord) -> bool: ...

    async def entries(self, block: int) -> list[BlockRecord]: ...

    async def announce_progress(self, record: ProgressRecord) -> bool: ...


class Listing(Protocol):
    """The part of a directory that a view reads."""

    async def entries(self, block: int) -> list[BlockRecord]:
        """What everybody said last of itself under ``block``, goodbyes too; may raise `DhtError`."""
        ...


class SwarmView:
    """Records of the holders of every block.

    A record counts until it expires, or its peer says something newer. That a look does not find it means nothing: a
    directory out of reach finds nobody, and who believed it would train, and commit, as if it were alone.

    Parameters
    ----------
    directory : Listing
        Where records are looked up.
    manifest : Manifest
        The run.
    own_id : str
        This peer, which is left out of what it sees.
    clock : Clock
        For expirations.
    """

    def __init__(self, directory: Listing, manifest: Manifest, own_id: str, clock: Clock) -> None:
        self._directory = directory
        self._manifest = manifest
        self._own_id = own_id
        self._clock = clock
        self._records: dict[int, list[BlockRecord]] = {}
        self._met: dict[int, dict[str, float]] = {}
        """Of each subject: who was met in a round, and until when that counts."""

    async def refresh(self) -> bool:
        """Look every block up once, bounded; a block that cannot be looked up keeps what was known of it.

        Returns
        -------
        bool
            Whether every block was looked up.
        """
        return await self._refresh_all(range(self._manifest.model.blocks))

    async def look_again(self, subject: int) -> tuple[str, ...]:
        """As `everyone`, after a look at what concerns ``subject``; bounded."""
        await self._refresh_all(range(self._manifest.model.blocks) if subject == EMBEDDING else (subject,))
        return self.everyone(subject)

    async def _refresh_all(self, blocks: Iterable[int]) -> bool:
        return all(await asyncio.gather(*(self._refresh(block) for block in blocks)))

    async def _refresh(self, block: int) -> bool:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                entries = await self._directory.entries(block)
        except (TimeoutError, DhtError) as error:
            log.debug("block %d could not be looked up: %s", block, error)
            return False
        now = self._clock.now()
        known = {record.peer_id: record for record in self._records.get(block, ()) if record.expires > now}
        for record in entries:
            if record.peer_id != self._own_id and not (
                record.peer_id in known and known[record.peer_id].issued > record.issued
            ):
                known[record.peer_id] = record
        self._records[block] = sorted(known.values(), key=lambda record: record.issued)[-MOST_RECORDS:]
        return True

    async def keep_fresh(self, own_block: Callable[[], int | None]) -> None:
        """Look blocks up for ever: the peer's own often, the others as seldom as the swarm is large."""
        looked: dict[int, float] = {}
        while True:
            pauses = self.pauses(own_block())
            now = asyncio.get_running_loop().time()
            due = [block for block, pause in pauses.items() if block not in looked or looked[block] + pause <= now]
            await self._refresh_all(due)
            now = asyncio.get_running_loop().time()
            looked |= dict.fromkeys(due, now)  # a pause begins when a look has ended
            pauses = self.pauses(own_block())
            await asyncio.sleep(max(MIN_PAUSE, min(looked[block] + pause - now for block, pause in pauses.items())))

    def pauses(self, own_block: int | None) -> dict[int, float]:
        """Seconds between two looks at each block, given how much was found there (``swarm/policy/asking.py``)."""
        blocks, seconds = range(self._manifest.model.blocks), self._manifest.rounds.seconds
        found = {block: len(self._records.get(block, ())) for block in blocks}
        others = sum(count for block, count in found.items() if block != own_block)
        return {
            block: look_seconds(
                round_seconds=seconds, records=found[block] if block == own_block else others, own=block == own_block
            )
            for block in blocks
        }

    def records(self, blocks: Iterable[int] | None = None) -> list[BlockRecord]:
        """Fresh records of the given blocks (all by default), at most one a peer: the one issued last."""
        now = self._clock.now()
        newest: dict[str, BlockRecord] = {}
        for block in self._manifest.subjects if blocks is None else blocks:
            for record in self._records.get(block, ()):
                known = newest.get(record.peer_id)
                there = record.expires > now and record.state != "OFFLINE"
                if there and (known is None or record.issued > known.issued):
                    newest[record.peer_id] = record
        return list(newest.values())

    def replicas(self, subject: int) -> tuple[str, ...]:
        """Peer ids that average ``subject`` with us: of the embedding all training peers, of a block its replicas.

        Who was met lately is among them, unless its record says otherwise: where a line is full, records expire before
        new ones are stored, and two that cannot find each other would each go on alone.
        """
        blocks = None if subject == EMBEDDING else (subject,)
        there = {record.peer_id for record in self.records(blocks) if record.state == "TRAINING"}
        return tuple(sorted(there | self._met_lately(subject)))

    def met(self, subject: int, peer_ids: Iterable[str]) -> None:
        """Note who was in the list of a round of ``subject`` with us."""
        now = self._clock.now()
        until = now + MET_ROUNDS * self._manifest.rounds.seconds
        before = {peer_id: moment for peer_id, moment in self._met.get(subject, {}).items() if moment > now}
        self._met[subject] = before | dict.fromkeys(set(peer_ids) - {self._own_id}, until)

    def _met_lately(self, subject: int) -> set[str]:
        now = self._clock.now()
        met = {peer_id for peer_id, until in self._met.get(subject, {}).items() if until > now}
        on_record = {
            record.peer_id
            for block in self._manifest.subjects
            for record in self._records.get(block, ())
            # Under another block: it has moved there. A goodbye there may be of before it came here.
            if record.expires > now and (subject in (block, EMBEDDING) or record.state != "OFFLINE")
        }
        return met - on_record

    def everyone(self, subject: int) -> tuple[str, ...]:
        """Peer ids on record for ``subject``, those that are still joining included."""
        blocks = None if subject == EMBEDDING else (subject,)
        return tuple(sorted(record.peer_id for record in self.records(blocks)))

    def holders(self, subject: int) -> tuple[str, ...]:
        """Peer ids on record that should be able to give the state of ``subject``."""
        blocks = None if subject == EMBEDDING else (subject,)
        return tuple(sorted(record.peer_id for record in self.records(blocks) if record.state != "JOINING"))


class Announcer:
    """Keeps this peer's record in the directory.

    Parameters
    ----------
    directory : Directory
        Where the record goes.
    describe : callable
        Gives the record as of now; ``issued`` and ``expires`` are set here.
    clock : Clock
        For those two.
    """

    def __init__(self, directory: Directory, describe: Callable[[float, float], BlockRecord], clock: Clock) -> None:
        self._directory = directory
        self._describe = describe
        self._clock = clock
        self._changed = asyncio.Event()
        self.failures = 0
        """Announcements in a row that no node took."""

    def changed(self) -> None:
        """Something others should know has changed: announce soon, not in this call."""
        self._changed.set()

    async def announce(self) -> bool:
        """Announce once, bounded; whether some node took the record."""
        now = self._clock.now()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                stored = await self._directory.announce(self._describe(now, now + RECORD_SECONDS))
        except (TimeoutError, DhtError) as error:
            log.debug("the announcement was not stored: %s", error)
            stored = False
        self.failures = 0 if stored else self.failures + 1
        return stored

    async def keep_announced(self) -> None:
        """Announce for ever: at a third of the record's life, and soon after a change."""
        while True:
            self._changed.clear()
            stored = await self.announce()
            try:
                async with asyncio.timeout(RECORD_SECONDS / 3 if stored else 2.0):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def goodbye(self, seconds: float) -> None:
        """Say that this peer leaves: an OFFLINE record that outlives the last announcement."""
        now = self._clock.now()
        try:
            async with asyncio.timeout(seconds):
                await self._directory.goodbye(self._describe(now, now + 1.5 * RECORD_SECONDS))
        except (TimeoutError, DhtError) as error:
            log.debug("the goodbye was not stored: %s", error)


SOFTWARE = f"blockswarm {blockswarm.__version__}"
