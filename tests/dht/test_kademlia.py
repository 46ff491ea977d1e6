"""The DHT under malicious nodes: what they store is not kept, what they answer is not believed."""

from __future__ import annotations

import asyncio
import time

import msgpack
import pytest
import pytest_asyncio
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils.timed_storage import ValueWithExpiration

from blockswarm.clock import ManualClock, SystemClock
from blockswarm.dht import kademlia
from blockswarm.dht.directory import Directory
from blockswarm.dht.identity import Identity
from blockswarm.dht.packing import pack
from blockswarm.dht.records import RunRecord, block_key, seal
from blockswarm.dht.validator import EXPIRY_GRACE, SignedRecordValidator
from tests.dht.world import RUN, block_record, now, there, two_hosts

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE = Identity.ephemeral()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair():
    """An honest host, and one whose node stores and answers whatever it likes."""
    async with two_hosts() as (honest, malicious):
        malicious.node.protocol.record_validator = None
        yield honest, malicious


@pytest.fixture(autouse=True)
def _fresh(pair):
    for host in pair:
        host.node.protocol.storage.held.clear()
        host.node.protocol.cache.held.clear()


async def push(pair, sealed, expires, *, key=None, subkey=ALICE.peer_id, in_cache=False):
    """Have the malicious node store an entry at the honest one; whether it was taken."""
    honest, malicious = pair
    key_id = DHTID.generate(source=key or block_key(RUN, 1))
    (taken,) = await malicious.node.protocol.call_store(
        honest.node.p2p.peer_id, [key_id], [msgpack.packb(sealed)], [expires], [subkey], in_cache=in_cache
    )
    kept = honest.node.protocol.storage.get(key_id) or honest.node.protocol.cache.get(key_id)
    assert taken == (kept is not None)
    return taken


async def test_a_good_record_is_kept(pair):
    record = block_record(ALICE, now())
    assert await push(pair, seal(ALICE, record), record.expires)


async def refused(pair, record, *, signer=ALICE, reason, expires=None, **where):
    before = pair[0].node.protocol.record_validator.refused
    sealed = record if isinstance(record, bytes) else seal(signer, record)
    expires = expires if expires is not None else getattr(record, "expires", now() + 45)
    assert not await push(pair, sealed, expires, **where)
    validator = pair[0].node.protocol.record_validator
    assert reason is None or (validator.refused > before and reason in validator.last_refusal), validator.last_refusal


@pytest.mark.parametrize("in_cache", [False, True])
async def test_forged_records_are_refused(pair, in_cache):
    good = bytearray(seal(ALICE, block_record(ALICE, now())))
    good[-1] ^= 1
    await refused(pair, bytes(good), reason="not signed by its owner", in_cache=in_cache)


async def test_a_record_of_another_peer_cannot_be_put_under_ones_own_subkey_nor_ones_own_under_anothers(pair):
    mallory = Identity.ephemeral()
    record = block_record(mallory, now())
    await refused(pair, record, signer=mallory, reason="stored under another subkey", subkey=ALICE.peer_id)
    await refused(pair, block_record(ALICE, now()), reason="stored under another subkey", subkey=mallory.peer_id)
    await refused(pair, block_record(ALICE, now()), reason="stored under another subkey", subkey=7)


async def test_a_record_cannot_be_put_under_another_key(pair):
    await refused(pair, block_record(ALICE, now()), reason="stored under another", key=block_key(RUN, 2))
    await refused(pair, block_record(ALICE, now()), reason="stored under another", key="anything")


async def test_oversized_records_are_refused(pair):
    await refused(pair, b"x" * 5000, reason="at most")
    await refused(pair, b"x" * (1 << 20), reason="at most")


async def test_expired_and_far_future_records_are_refused(pair):
    late = block_record(ALICE, now() - 60)
    await refused(pair, late, reason=None)
    await refused(pair, block_record(ALICE, now() - 600), reason="expired")
    await refused(pair, block_record(ALICE, now(), expires=now() + 700), reason="at most 600")
    await refused(pair, block_record(ALICE, now() + 100), reason="in the future")


async def test_the_expiration_must_be_the_signed_one(pair):
    record = block_record(ALICE, now())
    for expires in (record.expires + 5, record.expires - 5, 1e18, float("inf"), float("nan")):
        await refused(pair, record, reason="not the signed one", expires=expires)


async def test_ill_typed_records_are_refused(pair):
    at = now()
    fields = {"kind": "block", "run_id": RUN, "peer_id": ALICE.peer_id, "issued": at, "expires": at + 45, "block": 1}
    payload = pack(fields)
    key = block_key(RUN, 1)
    signature = ALICE.sign(b"blockswarm-record-1\0" + key.encode() + b"\0" + payload)
    await refused(pair, pack({"k": key, "p": payload, "s": signature}), reason="is missing")
    await refused(pair, b"not msgpack at all", reason="malformed")


async def test_plain_values_without_an_owner_are_refused(pair):
    record = block_record(ALICE, now())
    await refused(pair, record, reason="stored under another subkey", subkey=None)


async def test_a_dictionary_with_one_bad_entry_is_refused_whole(pair):
    honest, malicious = pair
    record = block_record(ALICE, now())
    entries = DictionaryDHTValue()
    entries.store(ALICE.peer_id, msgpack.packb(seal(ALICE, record)), record.expires)
    entries.store("mallory", b"junk", record.expires)
    key_id = DHTID.generate(source=block_key(RUN, 1))
    taken = await malicious.node.protocol.call_store(honest.node.p2p.peer_id, [key_id], [entries], [record.expires])
    assert taken == [False] and honest.node.protocol.storage.get(key_id) is None


async def test_an_earlier_record_sent_again_does_not_shorten_the_life_of_the_newer_one(pair):
    at = now()
    old, new = block_record(ALICE, at - 10, expires=at + 2), block_record(ALICE, at, expires=at + 45, round=42)
    assert await push(pair, seal(ALICE, new), new.expires)
    await pair[1].node.protocol.call_store(
        pair[0].node.p2p.peer_id,
        [DHTID.generate(source=block_key(RUN, 1))],
        [msgpack.packb(seal(ALICE, old))],
        [old.expires],
        [ALICE.peer_id],
    )
    await asyncio.sleep(max(0.0, old.expires + 0.3 - now()))
    (holder,) = await there(Directory(pair[0], RUN, SystemClock()), 1)
    assert holder.round == 42


async def test_answers_of_a_malicious_node_are_not_believed_and_do_not_hide_the_honest_ones(pair):
    honest, malicious = pair
    key_id = DHTID.generate(source=block_key(RUN, 1))
    record = block_record(ALICE, now())
    honest.node.protocol.storage.store_subkey(key_id, ALICE.peer_id, msgpack.packb(seal(ALICE, record)), record.expires)
    mallory = Identity.ephemeral()
    lie = block_record(mallory, now())
    forged = bytearray(seal(mallory, lie))
    forged[-1] ^= 1
    evil = DictionaryDHTValue()
    evil.store(mallory.peer_id, msgpack.packb(bytes(forged)), lie.expires)
    malicious.node.protocol.storage.held.data[key_id] = ValueWithExpiration(evil, lie.expires)
    directory = Directory(honest, RUN, SystemClock())
    assert [holder.peer_id for holder in await there(directory, 1)] == [ALICE.peer_id]


async def test_an_endless_expiration_does_not_end_a_search_early(pair):
    """hivemind takes the answer that expires last for the latest; an empty one could hide all holders."""
    honest, malicious = pair
    key_id = DHTID.generate(source=block_key(RUN, 1))
    empty = DictionaryDHTValue()
    empty.latest_expiration_time = 1e18
    malicious.node.protocol.storage.held.data[key_id] = ValueWithExpiration(empty, 1e18)
    malicious.node.protocol.storage.get = lambda key: malicious.node.protocol.storage.held.data.get(key)
    try:
        answers = await honest.node.protocol.call_find(malicious.node.p2p.peer_id, [key_id])
    finally:
        del malicious.node.protocol.storage.get
    assert answers[key_id][0] is None
    assert await there(Directory(honest, RUN, SystemClock()), 1) == []


async def test_an_entry_that_expires_on_the_way_does_not_cost_the_others():
    """hivemind drops an answer whole when one entry in it is invalid; a moment too late must not count as that."""
    clock = ManualClock(1_800_000_000.0)
    validator = SignedRecordValidator(clock)
    record = block_record(ALICE, clock.now())
    entry = DHTRecord(
        DHTID.generate(source=record.key()).to_bytes(),
        pack(ALICE.peer_id),
        pack(seal(ALICE, record)),
        record.expires,
    )
    assert validator.validate(entry)
    await clock.advance(45.0 + EXPIRY_GRACE - 1.0)
    assert validator.validate(entry)
    await clock.advance(1.0)
    assert not validator.validate(entry)


async def test_a_flood_of_keys_and_owners_stays_within_bounds():
    storage = kademlia.BoundedStorage(max_keys=10, max_subkeys=5)
    expires = time.time() + 60
    for number in range(50):
        assert storage.store_subkey(DHTID(7), f"owner {number}", b"x", expires + number) == (number < 5)
        assert storage.store_subkey(DHTID(1000 + number), "owner", b"x", expires + number) == (number < 9)
    assert len(storage) == 10
    assert not storage.store(DHTID(1), b"plain value", expires)
    # Those who are in may go on announcing.
    assert storage.store_subkey(DHTID(7), "owner 3", b"newer", expires + 100)
    assert dict(storage.get(DHTID(7)).value.items())["owner 3"].value == b"newer"


async def test_what_a_search_gets_is_a_copy():
    storage = kademlia.BoundedStorage(10, 10)
    storage.store_subkey(DHTID(1), "a", b"x", time.time() + 60)
    storage.get(DHTID(1)).value.store("b", b"smuggled", time.time() + 60)
    assert [subkey for subkey, _ in storage.get(DHTID(1)).value.items()] == ["a"]


async def test_a_reply_that_comes_as_its_call_is_cancelled_does_not_deafen_the_node():
    pending = kademlia._PendingCalls()
    pending["call"] = asyncio.get_running_loop().create_future()
    assert "call" in pending and "other" not in pending
    pending["call"].cancel()
    assert "call" not in pending


async def test_calls_cut_short_are_not_remembered_for_ever():
    tasks = kademlia._HandlerTasks()
    tasks["call"] = asyncio.create_task(asyncio.sleep(60))
    tasks["call"].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not tasks


async def test_light_clients_get_the_sealed_records_from_any_peer(pair):
    honest, malicious = pair
    record = block_record(ALICE, now())
    sealed = seal(ALICE, record)
    assert await push(pair, sealed, record.expires)
    run = RunRecord(run_id=RUN, name="demo", digest=b"m" * 32, peer_id=honest.peer_id, issued=now(), expires=now() + 60)
    assert await Directory(honest, RUN, SystemClock()).announce_run(run)

    async def ask(**body):
        return (await malicious.call(honest.peer_id, "records", body, timeout=20)).body["records"]

    assert await ask(kind="block", run_id=RUN, block=1) == [sealed]
    assert await ask(kind="block", run_id=RUN, block=2) == []
    assert await ask(kind="progress", run_id=RUN, subject=-1) == []
    assert len(await ask(kind="runs")) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "cookies"},
        {"kind": "block", "run_id": RUN},
        {"kind": "block", "run_id": "a.b", "block": 1},
        {"kind": "block", "run_id": RUN, "block": 1.5},
        {"kind": "block", "run_id": RUN, "block": 1, "shard": -1},
        {"kind": "progress", "run_id": RUN, "subject": "x"},
    ],
)
async def test_strange_questions_for_records_are_refused(pair, body):
    from blockswarm.dht.errors import RpcError

    with pytest.raises(RpcError, match="bad-request"):
        await pair[1].call(pair[0].peer_id, "records", body, timeout=10)
