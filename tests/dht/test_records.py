"""Signed records: believed only if canonical, typed, timely, under their key, and signed by their owner."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.dht import records
from blockswarm.dht.errors import RecordError
from blockswarm.dht.identity import Identity
from blockswarm.dht.packing import pack
from blockswarm.dht.records import BlockRecord, ProgressRecord, RunRecord, open_sealed, seal
from tests.dht.world import RUN, block_record

NOW = 1_800_000_000.0
ALICE, MALLORY = Identity.ephemeral(), Identity.ephemeral()


def run_record(**changes):
    fields = {
        "run_id": RUN,
        "name": "demo",
        "digest": b"m" * 32,
        "peer_id": ALICE.peer_id,
        "issued": NOW,
        "expires": NOW + 300,
    }
    return RunRecord(**(fields | changes))


def progress_record(**changes):
    fields = {
        "run_id": RUN,
        "subject": records.EMBEDDING,
        "peer_id": ALICE.peer_id,
        "round": 41,
        "digest": b"d" * 32,
        "accepted": [ALICE.peer_id, MALLORY.peer_id],
        "samples": 640,
        "certified": True,
        "heldout_ce": 2.75,
        "issued": NOW,
        "expires": NOW + 120,
    }
    return ProgressRecord(**(fields | changes))


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (block_record(ALICE, NOW), f"{RUN}.block.1"),
        (block_record(ALICE, NOW, state="JOINING", digest=b"", embedding_digest=b"", addrs=()), f"{RUN}.block.1"),
        (run_record(), "blockswarm.runs"),
        (progress_record(), f"{RUN}.progress.-1"),
        (progress_record(heldout_ce=None, lone=True), f"{RUN}.progress.-1"),
    ],
)
def test_a_record_comes_back_as_it_was(record, key):
    sealed = seal(ALICE, record)
    assert open_sealed(sealed, key=key, now=NOW) == record
    assert open_sealed(sealed, now=NOW) == record
    assert len(sealed) < records.MAX_RECORD / 2


def test_the_largest_records_fit():
    addr = f"/dns4/{'x' * 63}.{'y' * 63}.org/tcp/65535/ws/p2p/{ALICE.peer_id}"
    block = block_record(ALICE, NOW, addrs=[addr] * 8, software="s" * 64, run_id="r" * 80)
    progress = progress_record(accepted=[ALICE.peer_id] * 64, run_id="r" * 80)
    for record in (block, progress):
        assert len(seal(ALICE, record)) <= records.MAX_RECORD


def test_only_the_owner_can_sign():
    with pytest.raises(RecordError, match="cannot be signed by"):
        seal(MALLORY, block_record(ALICE, NOW))


def forged(record=None, *, signer=ALICE, key=None, payload=None, envelope=None, **fields):
    """A sealed record with something wrong in it, otherwise put together as `seal` does."""
    record = record or block_record(ALICE, NOW)
    values = {"kind": record.KIND} | {f.name: getattr(record, f.name) for f in dataclasses.fields(record)} | fields
    payload = pack(values) if payload is None else payload
    key = record.key() if key is None else key
    signature = signer.sign(b"blockswarm-record-1\0" + key.encode() + b"\0" + payload)
    return pack({"k": key, "p": payload, "s": signature} | (envelope or {}))


def refused(sealed, reason, *, key=None, now=NOW):
    with pytest.raises(RecordError, match=reason):
        open_sealed(sealed, key=key, now=now)


def test_the_helper_below_makes_good_records_when_nothing_is_wrong():
    assert open_sealed(forged(), now=NOW) == block_record(ALICE, NOW)


def test_a_record_signed_by_somebody_else_is_forged():
    refused(forged(signer=MALLORY), f"not signed by its owner {ALICE.peer_id}")


def test_a_record_signed_for_another_key_is_refused():
    refused(forged(key=f"{RUN}.block.2"), "its content belongs under")
    refused(forged(key="blockswarm.runs"), "its content belongs under")
    refused(forged(key=f"{RUN}.block.1.256"), "its content belongs under")
    refused(forged(key=f"{RUN}.block.1.01"), "its content belongs under")
    refused(forged(), "found under", key=f"{RUN}.block.2")


def test_a_shard_of_a_block_is_a_key_of_its_own():
    sealed = seal(ALICE, block_record(ALICE, NOW), shard=7)
    assert open_sealed(sealed, key=f"{RUN}.block.1.7", now=NOW).block == 1
    refused(sealed, "found under", key=f"{RUN}.block.1")


@pytest.mark.parametrize(
    ("changes", "at", "reason"),
    [
        ({}, NOW + 45.1, "expired 0 s ago"),
        ({}, NOW + 3600, "expired 3555 s ago"),
        ({"expires": NOW + 601}, NOW, "expires in 601 s; at most 600"),
        ({"expires": NOW + 1e9}, NOW, "at most 600"),
        ({"issued": NOW + 61, "expires": NOW + 100}, NOW, "issued 61 s in the future"),
        ({"issued": NOW + 50, "expires": NOW + 40}, NOW, "before it was issued"),
    ],
)
def test_expired_far_future_and_impossible_times_are_refused(changes, at, reason):
    refused(seal(ALICE, block_record(ALICE, NOW, **changes)), reason, now=at)


def test_a_record_is_believed_up_to_its_last_moment():
    assert open_sealed(seal(ALICE, block_record(ALICE, NOW)), now=NOW + 44.9).round == 41


INFINITY, NAN = float("inf"), float("nan")
BAD_FIELDS = [
    ("kind", "cookie", "unknown kind"),
    ("kind", 5, "unknown kind"),
    ("run_id", "", "run_id"),
    ("run_id", "a.b", "run_id"),
    ("run_id", "x" * 81, "run_id"),
    ("run_id", "demo\n", "run_id"),
    ("block", -1, "block"),
    ("block", 4096, "block"),
    ("block", 1.0, "block"),
    ("block", True, "block"),
    ("peer_id", "somebody", "peer_id"),
    ("peer_id", b"x", "peer_id"),
    ("state", "DANCING", "state"),
    ("state", None, "state"),
    ("round", -1, "round"),
    ("round", 2**53, "round"),
    ("digest", b"d" * 31, "digest"),
    ("digest", b"", "digest"),
    ("digest", "d" * 32, "digest"),
    ("embedding_digest", None, "embedding_digest"),
    ("samples_per_second", NAN, "samples_per_second"),
    ("samples_per_second", INFINITY, "samples_per_second"),
    ("samples_per_second", -1.0, "samples_per_second"),
    ("samples_per_second", "fast", "samples_per_second"),
    ("serving_rps", 1, "must be a float"),
    ("addrs", "/ip4/192.0.2.7/tcp/1", "addrs"),
    ("addrs", ["nowhere"], "bad multiaddr"),
    ("addrs", ["/ip4/192.0.2.7/tcp/4001"], "addrs"),
    ("addrs", [f"/ip4/192.0.2.7/tcp/4001/p2p/{MALLORY.peer_id}"], "addrs"),
    ("addrs", [f"/ip4/192.0.2.7/tcp/0/p2p/{ALICE.peer_id}"], "addrs"),
    ("addrs", [f"/ip4/192.0.2.7/tcp/1/p2p/{ALICE.peer_id}"] * 9, "addrs"),
    ("addrs", [7], "addrs"),
    ("relayed", 1, "relayed"),
    ("software", "x" * 65, "software"),
    ("software", "\x1b[2J", "software"),
    ("protocol", 0, "protocol"),
    ("issued", NAN, "issued"),
    ("expires", INFINITY, "expires"),
    ("expires", int(NOW) + 45, "must be a float"),
    ("unheard_of", 1, "'unheard_of' is unknown"),
]


@pytest.mark.parametrize(("field", "value", "reason"), BAD_FIELDS, ids=lambda value: str(value)[:20])
def test_an_ill_typed_field_is_refused_although_its_owner_signed_it(field, value, reason):
    refused(forged(**{field: value}), reason)


def test_a_missing_field_is_refused():
    values = {"kind": "block"} | {
        f.name: getattr(block_record(ALICE, NOW), f.name) for f in dataclasses.fields(BlockRecord)
    }
    del values["digest"]
    refused(forged(payload=pack(values)), "'digest' is missing")


def test_oversized_records_are_refused_unread():
    refused(b"\0" * 4097, "4097 bytes; at most 4096")
    refused(forged(envelope={"x": b"y" * 4000}), "at most 4096")


@pytest.mark.parametrize(
    "envelope",
    [
        {"extra": 1},
        {"s": b"short"},
        {"s": "text"},
        {"k": b"bytes"},
        {"p": {}},
    ],
)
def test_a_strange_envelope_is_refused(envelope):
    refused(forged(envelope=envelope), ".")


def test_the_same_content_in_other_bytes_is_refused():
    """One record has one form: nobody can make a second valid one out of it."""
    good = msgpack.unpackb(seal(ALICE, block_record(ALICE, NOW)))
    refused(msgpack.packb(dict(reversed(good.items()))), "canonical")
    shuffled = msgpack.packb(dict(reversed(msgpack.unpackb(good["p"]).items())))
    refused(forged(payload=shuffled), "canonical")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_changed_byte_is_noticed(place, change):
    sealed = bytearray(seal(ALICE, block_record(ALICE, NOW)))
    sealed[place % len(sealed)] ^= change
    refused(bytes(sealed), ".")


@given(st.binary(max_size=500))
def test_garbage_raises_nothing_but_a_record_error(data):
    refused(data, ".")


def test_a_bad_value_is_refused_when_the_record_is_made():
    with pytest.raises(RecordError, match="block record: samples_per_second must be a finite number from 0 to 1e"):
        block_record(ALICE, NOW, samples_per_second=NAN)
    with pytest.raises(RecordError, match="accepted must be a list of at most 64 peer ids"):
        progress_record(accepted=["me"])
    with pytest.raises(RecordError, match="run record: name"):
        run_record(name="")


def test_checking_is_cached_by_content_but_times_are_looked_at_each_time():
    sealed = seal(ALICE, block_record(ALICE, NOW))
    before = records.open_timeless.cache_info().hits
    for _ in range(10):
        open_sealed(sealed, now=NOW)
    assert records.open_timeless.cache_info().hits >= before + 9
    refused(sealed, "expired", now=NOW + 100)
