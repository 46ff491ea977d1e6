"""What a peer sees of the others, and how it keeps its own record in the directory."""

from __future__ import annotations

import asyncio
import dataclasses

from blockswarm.clock import ManualClock
from blockswarm.dht.errors import DhtError
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord
from blockswarm.peer.view import RECORD_SECONDS, Announcer, SwarmView
from blockswarm.swarm.manifest import EMBEDDING, create_manifest

MANIFEST = create_manifest(name="view", now=1_000_000.0)
OWN, FIRST, SECOND, THIRD = (Identity.ephemeral().peer_id for _ in range(4))


def record(peer_id: str, block: int, state: str = "TRAINING", *, issued: float = 1_000_000.0) -> BlockRecord:
    return BlockRecord(
        run_id=MANIFEST.run_id,
        block=block,
        peer_id=peer_id,
        state=state,
        digest=b"d" * 32,
        embedding_digest=b"e" * 32,
        issued=issued,
        expires=issued + RECORD_SECONDS,
    )


class ListedDirectory:
    """A directory in memory."""

    def __init__(self, *records: BlockRecord) -> None:
        self.records = list(records)
        self.announced: list[BlockRecord] = []
        self.stored = asyncio.Semaphore(0)
        self.stores = True
        self.broken = False

    async def entries(self, block: int) -> list[BlockRecord]:
        if self.broken:
            raise DhtError("no node answers")
        return [entry for entry in self.records if entry.block == block]

    async def announce(self, entry: BlockRecord) -> bool:
        self.announced.append(entry)
        self.stored.release()
        return self.stores

    async def goodbye(self, entry: BlockRecord) -> bool:
        self.announced.append(entry)
        return True

    async def announce_progress(self, entry: object) -> bool:
        return True


async def seen(*records: BlockRecord, clock: ManualClock | None = None) -> SwarmView:
    view = SwarmView(ListedDirectory(*records), MANIFEST, OWN, clock or ManualClock())
    await view.refresh()
    return view


async def test_replicas_of_a_block_are_those_that_train_it_and_of_the_embedding_all_that_train():
    view = await seen(record(FIRST, 0), record(SECOND, 0, "JOINING"), record(THIRD, 1), record(OWN, 0))
    assert view.replicas(0) == (FIRST,)
    assert view.replicas(EMBEDDING) == tuple(sorted([FIRST, THIRD]))


async def test_a_peer_that_moved_counts_once_where_it_said_last():
    view = await seen(record(FIRST, 0), record(FIRST, 2, issued=1_000_010.0))
    assert [entry.block for entry in view.records()] == [2]


async def test_a_peer_that_said_goodbye_or_whose_record_expired_is_gone():
    clock = ManualClock()
    view = await seen(record(FIRST, 0, "OFFLINE"), record(SECOND, 0), clock=clock)
    assert view.replicas(0) == (SECOND,)
    await clock.advance(RECORD_SECONDS + 1)
    assert view.replicas(0) == ()


async def test_who_is_not_found_is_there_until_its_record_expires_or_it_says_goodbye():
    """Out of reach, the DHT finds nobody; who took that for an empty swarm would commit alone."""
    clock, directory = ManualClock(), ListedDirectory(record(FIRST, 0), record(SECOND, 0))
    view = SwarmView(directory, MANIFEST, OWN, clock)
    await view.refresh()
    directory.records = [record(SECOND, 0, "OFFLINE", issued=1_000_010.0)]
    await view.refresh()
    assert view.replicas(0) == (FIRST,)
    directory.records = [record(SECOND, 0)]  # an old copy of a record that was replaced
    await view.refresh()
    assert view.replicas(0) == (FIRST,)
    await clock.advance(RECORD_SECONDS + 1)
    assert view.replicas(0) == ()


async def test_who_was_met_is_called_again_for_two_rounds_though_its_record_cannot_be_found():
    """Two whose lines were full found no records of each other, and each committed alone."""
    clock, directory = ManualClock(), ListedDirectory(record(SECOND, 0, "OFFLINE"), record(THIRD, 0, "CONTRIBUTING"))
    view = SwarmView(directory, MANIFEST, OWN, clock)
    await view.refresh()
    view.met(0, [OWN, FIRST, SECOND, THIRD])
    assert view.replicas(0) == (FIRST,)  # the others say themselves that they take no part
    await clock.advance(1.5 * MANIFEST.rounds.seconds)
    view.met(0, [OWN])
    assert view.replicas(0) == (FIRST,)
    await clock.advance(1.5 * MANIFEST.rounds.seconds)
    assert view.replicas(0) == ()


async def test_who_was_met_is_not_called_once_it_is_found_at_another_block_but_a_goodbye_there_is_an_old_one():
    view = await seen(record(FIRST, 2), record(SECOND, 2, "OFFLINE"))
    view.met(0, [FIRST, SECOND])
    assert view.replicas(0) == (SECOND,)


async def test_a_peer_that_moved_is_there_although_its_former_block_says_that_it_left():
    view = await seen(record(FIRST, 0, "OFFLINE"), record(FIRST, 2))
    assert view.everyone(2) == view.everyone(EMBEDDING) == (FIRST,)


async def test_a_directory_that_does_not_answer_leaves_what_was_known():
    directory = ListedDirectory(record(FIRST, 0))
    view = SwarmView(directory, MANIFEST, OWN, ManualClock())
    await view.refresh()
    directory.broken = True
    await view.refresh()
    assert view.replicas(0) == (FIRST,)


async def test_a_change_is_announced_soon_and_a_goodbye_outlives_the_last_announcement():
    clock, directory = ManualClock(), ListedDirectory()
    state = ["JOINING"]

    def describe(issued: float, expires: float) -> BlockRecord:
        return dataclasses.replace(record(OWN, 0, state[0]), issued=issued, expires=expires)

    announcer = Announcer(directory, describe, clock)
    keeping = asyncio.create_task(announcer.keep_announced())
    async with asyncio.timeout(5):
        await directory.stored.acquire()
        state[0] = "TRAINING"
        announcer.changed()
        await directory.stored.acquire()
    keeping.cancel()
    assert [entry.state for entry in directory.announced] == ["JOINING", "TRAINING"]
    await announcer.goodbye(1.0)
    assert directory.announced[-1].expires > directory.announced[-2].expires


async def test_announcements_nobody_takes_are_counted():
    directory = ListedDirectory()
    directory.stores = False
    announcer = Announcer(directory, lambda issued, expires: record(OWN, 0), ManualClock())
    assert not await announcer.announce() and not await announcer.announce()
    assert announcer.failures == 2


async def test_a_large_swarm_is_read_more_seldom_and_a_peers_own_block_more_often_than_others():
    crowd = [Identity.ephemeral().peer_id for _ in range(60)]
    small = await seen(record(FIRST, 0), record(SECOND, 1))
    assert set(small.pauses(0).values()) == {2.5}
    large = await seen(*(record(peer_id, number % 3) for number, peer_id in enumerate(crowd)))
    pauses = large.pauses(0)
    assert 2.5 < pauses[0] == large.pauses(1)[1] < pauses[2] < RECORD_SECONDS * 2 / 3


async def test_blocks_are_looked_up_when_they_are_due(monkeypatch):
    """Each from the end of its last look; a peer that moves reads its new block as often from then on."""
    looks: asyncio.Queue[int] = asyncio.Queue()

    class Counting(ListedDirectory):
        async def entries(self, block: int) -> list[BlockRecord]:
            looks.put_nowait(block)
            return []

    view = SwarmView(Counting(), MANIFEST, OWN, ManualClock())
    monkeypatch.setattr(view, "pauses", lambda own: {block: 0.05 if block == own else 60.0 for block in range(3)})
    monkeypatch.setattr("blockswarm.peer.view.MIN_PAUSE", 0.01)
    own = 0
    task = asyncio.create_task(view.keep_fresh(lambda: own))
    async with asyncio.timeout(5.0):
        assert [await looks.get() for _ in range(5)] == [0, 1, 2, 0, 0]
        own = 1
        while await looks.get() != 1:
            pass
        assert [await looks.get() for _ in range(2)] == [1, 1]
    task.cancel()
