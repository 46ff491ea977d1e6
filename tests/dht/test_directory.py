"""The directory of a run: who is there, who said goodbye, who was never heard of again."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
import pytest_asyncio

from blockswarm.clock import ManualClock, SystemClock
from blockswarm.dht.directory import Directory, find_runs
from blockswarm.dht.errors import RecordError
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import ProgressRecord, RunRecord, block_key
from tests.dht.world import RUN, block_record, eventually, knows, new_host, now, there

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts():
    """Three hosts that know each other."""
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for _ in range(3):
            host = await new_host(initial_peers=started[0].addresses() if started else ())
            stack.push_async_callback(host.stop)
            started.append(host)
        await eventually(lambda: all(knows(one, two) for one in started for two in started if one is not two))
        yield started


@pytest.fixture
def directories(hosts):
    for host in hosts:
        host.node.protocol.storage.held.clear()
        host.published.clear()
    return [Directory(host, RUN, SystemClock()) for host in hosts]


def record_of(host, block=1, **changes):
    return block_record(host.identity, now(), block=block, addrs=host.addresses(), **changes)


def ids(records):
    return [record.peer_id for record in records]


async def test_everybody_sees_who_holds_a_block(hosts, directories):
    one, two, _ = hosts
    assert await directories[0].announce(record_of(one))
    assert await directories[1].announce(record_of(two, state="SERVING", relayed=True))
    for directory in directories:
        holders = await there(directory, 1)
        assert ids(holders) == sorted([one.peer_id, two.peer_id])
        assert {holder.state for holder in holders} == {"TRAINING", "SERVING"}
        assert await there(directory, 2) == []


async def test_holders_found_can_be_called(hosts, directories):
    one, _, three = hosts
    three.book._entries.clear()
    await directories[0].announce(record_of(one))
    await there(directories[2], 1)
    assert three.book.addrs(one.peer_id) == tuple(one.addresses())


async def test_a_new_announcement_replaces_the_old_one(hosts, directories):
    for number in (41, 42, 43):
        assert await directories[0].announce(record_of(hosts[0], round=number))
    (holder,) = await there(directories[1], 1)
    assert holder.round == 43


async def test_who_moves_to_another_block_is_no_longer_listed_under_the_first(hosts, directories):
    await directories[0].announce(record_of(hosts[0], block=1))
    await directories[0].announce(record_of(hosts[0], block=2))
    assert await there(directories[1], 1) == []
    assert ids(await there(directories[1], 2)) == [hosts[0].peer_id]
    await directories[0].announce(record_of(hosts[0], block=1))
    assert ids(await there(directories[1], 1)) == [hosts[0].peer_id]


async def test_a_goodbye_is_seen_at_once_and_a_return_as_well(hosts, directories):
    await directories[0].announce(record_of(hosts[0]))
    start = time.monotonic()
    assert await directories[0].goodbye()
    assert time.monotonic() - start < 5
    assert await there(directories[1], 1) == []
    # Back within the life of the goodbye, as another process that knows nothing of it.
    hosts[0].published.clear()
    again = Directory(hosts[0], RUN, SystemClock())
    assert await again.announce(record_of(hosts[0], expires=now() + 20))
    assert ids(await there(directories[1], 1)) == [hosts[0].peer_id]


async def test_a_goodbye_may_come_with_a_record_or_with_nothing_to_withdraw(hosts, directories):
    assert await directories[0].goodbye()
    await directories[0].announce(record_of(hosts[0]))
    assert await Directory(hosts[0], RUN, SystemClock()).goodbye(record_of(hosts[0]))
    assert await there(directories[1], 1) == []


async def test_a_ghost_is_gone_when_its_record_expires(hosts, directories):
    await directories[0].announce(record_of(hosts[0], expires=now() + 2.0))
    assert ids(await there(directories[1], 1)) == [hosts[0].peer_id]
    await eventually(lambda: no_holders(directories[1]), within=10)


async def no_holders(directory):
    return not await there(directory, 1)


async def test_the_swarms_time_decides_what_is_expired(hosts, directories):
    await directories[0].announce(record_of(hosts[0]))
    later = ManualClock(now() + 46.0)
    assert await there(Directory(hosts[1], RUN, later), 1) == []


async def test_holders_are_found_across_shards(hosts, directories):
    sharded = [Directory(host, RUN, SystemClock(), shards=5) for host in hosts]
    for host, directory in zip(hosts, sharded, strict=True):
        assert await directory.announce(record_of(host))
    used = {key for host in hosts for key in host.published}
    assert used <= {block_key(RUN, 1, shard) for shard in range(5)}
    assert ids(await there(sharded[0], 1)) == sorted(host.peer_id for host in hosts)
    with pytest.raises(ValueError, match="shards"):
        Directory(hosts[0], RUN, SystemClock(), shards=0)


async def test_only_ones_own_records_can_be_announced(hosts, directories):
    with pytest.raises(RecordError, match="cannot be signed by"):
        await directories[0].announce(block_record(Identity.ephemeral(), now()))


async def test_round_reports_of_all_replicas_newest_first(hosts, directories):
    for host, directory, number in zip(hosts, directories, (7, 9, 8), strict=True):
        report = ProgressRecord(
            run_id=RUN,
            subject=0,
            peer_id=host.peer_id,
            round=number,
            digest=b"d" * 32,
            accepted=[other.peer_id for other in hosts],
            certified=True,
            issued=now(),
            expires=now() + 60,
        )
        assert await directory.announce_progress(report)
    assert [report.round for report in await directories[0].progress(0)] == [9, 8, 7]
    assert await directories[0].progress(-1) == []


async def test_a_newcomer_can_choose_among_the_runs(hosts, directories):
    for host, run_id in zip(hosts, (RUN, RUN, "other-ba9876543210"), strict=True):
        record = RunRecord(
            run_id=run_id,
            name=run_id.split("-")[0],
            digest=b"m" * 32,
            peer_id=host.peer_id,
            addrs=host.addresses(),
            issued=now(),
            expires=now() + 60,
        )
        assert await Directory(host, run_id, SystemClock()).announce_run(record)
    found = await find_runs(hosts[0], SystemClock())
    assert [record.run_id for record in found] == [RUN, RUN, "other-ba9876543210"]
    assert await directories[1].runs() == found


async def test_a_lone_host_is_its_own_directory():
    host = await new_host()
    try:
        directory = Directory(host, RUN, SystemClock())
        assert await directory.announce(record_of(host))
        assert ids(await there(directory, 1)) == [host.peer_id]
    finally:
        await host.stop()


async def test_a_stalled_peer_does_not_stall_the_directory(hosts, directories, monkeypatch):
    """Whatever the DHT does, a look and an announcement come back."""

    async def never(*args, **options):
        await asyncio.sleep(60)

    monkeypatch.setattr(hosts[0].node, "get", never)
    monkeypatch.setattr(hosts[0].node, "store", never)
    monkeypatch.setattr("blockswarm.dht.directory.STORE_SECONDS", 0.3)
    monkeypatch.setattr("blockswarm.dht.directory.OWN_SECONDS", 0.1)
    start = time.monotonic()
    assert await there(directories[0], 1, timeout=0.2) == []
    assert not await directories[0].announce(record_of(hosts[0]))
    assert time.monotonic() - start < 5


async def test_trouble_inside_the_dht_is_no_trouble_for_its_user(hosts, directories, monkeypatch):
    async def broken(*args, **options):
        raise AssertionError("Internal error: traverse_dht didn't finish search")

    monkeypatch.setattr(hosts[0].node, "get", broken)
    monkeypatch.setattr(hosts[0].node, "store", broken)
    assert await there(directories[0], 1) == []
    assert not await directories[0].announce(record_of(hosts[0]))
