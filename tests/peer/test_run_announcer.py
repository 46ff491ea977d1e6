"""Some volunteers tell of their run, so that it is found without a bootstrap node; never all of a large swarm."""

from __future__ import annotations

import asyncio

from blockswarm.clock import ManualClock
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import RunRecord
from blockswarm.peer.run_announcer import ENOUGH, is_turn, keep_run_announced
from blockswarm.peer.view import RECORD_SECONDS
from blockswarm.swarm.manifest import create_manifest

MANIFEST = create_manifest(name="told", now=1_000_000.0)
PEERS = sorted(Identity.ephemeral().peer_id for _ in range(10))


def record(peer_id: str, digest: bytes = MANIFEST.digest) -> RunRecord:
    now = 1_000_000.0
    return RunRecord(
        run_id=MANIFEST.run_id,
        name=MANIFEST.name,
        digest=digest,
        peer_id=peer_id,
        addrs=(),
        issued=now,
        expires=now + RECORD_SECONDS,
    )


class Host:
    """A peer, and the directory as it sees it."""

    def __init__(self, peer_id: str, *records: RunRecord) -> None:
        self.peer_id = peer_id
        self.records = list(records)
        self.announced: asyncio.Queue[RunRecord] = asyncio.Queue()

    def addresses(self) -> list[str]:
        return [f"/ip4/192.0.2.1/tcp/4001/p2p/{self.peer_id}"]

    async def runs(self) -> list[RunRecord]:
        return self.records

    async def announce_run(self, entry: RunRecord) -> bool:
        self.announced.put_nowait(entry)
        return True


def test_those_with_the_lowest_ids_tell_and_the_others_do_not() -> None:
    told = [record(peer) for peer in PEERS]
    assert [peer for peer in PEERS if is_turn(peer, told, MANIFEST.digest)] == PEERS[:ENOUGH]


def test_when_one_of_them_is_gone_the_next_one_tells() -> None:
    told = [record(peer) for peer in PEERS[1:ENOUGH]]
    assert is_turn(PEERS[ENOUGH], told, MANIFEST.digest)


def test_peers_that_tell_of_another_manifest_do_not_count() -> None:
    assert is_turn(PEERS[-1], [record(peer, digest=b"x" * 32) for peer in PEERS], MANIFEST.digest)


async def test_a_volunteer_among_few_announces_its_run() -> None:
    host, clock = Host(PEERS[-1], record(PEERS[0])), ManualClock()
    task = asyncio.create_task(keep_run_announced(host, host, MANIFEST, clock, always=False))
    entry = await host.announced.get()
    task.cancel()
    assert (entry.run_id, entry.digest, entry.peer_id) == (MANIFEST.run_id, MANIFEST.digest, host.peer_id)
    assert entry.addrs == tuple(host.addresses())
    assert (entry.issued, entry.expires) == (clock.now(), clock.now() + RECORD_SECONDS)


async def test_a_bootstrap_node_announces_among_any_number() -> None:
    host = Host(PEERS[-1], *map(record, PEERS))
    task = asyncio.create_task(keep_run_announced(host, host, MANIFEST, ManualClock(), always=True))
    assert (await host.announced.get()).peer_id == host.peer_id
    task.cancel()
