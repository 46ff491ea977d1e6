"""msgpack from strangers: one canonical form, a bounded subset, one kind of error."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.dht.packing import MAX_DEPTH, PackingError, pack, unpack, unpack_map

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(plain)
def test_what_is_packed_comes_back(value):
    assert unpack(pack(value), max_bytes=1 << 20) == value


@given(st.dictionaries(st.text(), st.integers(0, 9)))
def test_the_order_of_keys_does_not_change_the_bytes(fields):
    assert pack(fields) == pack(dict(reversed(fields.items())))


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_a_packing_error(data):
    with contextlib.suppress(PackingError):
        unpack(data, max_bytes=1 << 20)


def nested(depth):
    value = None
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(msgpack.packb({1: "x"}), "map keys", id="integer key"),
        pytest.param(msgpack.packb({b"k": "x"}), "map keys", id="bytes key"),
        pytest.param(msgpack.packb(msgpack.ExtType(5, b"abc")), "msgpack", id="extension"),
        pytest.param(b"\xd6\xff\x00\x00\x00\x00", "msgpack", id="timestamp"),
        pytest.param(msgpack.packb([1]) + b"\x00", "after its end", id="bytes after the end"),
        pytest.param(b"\x92\x01", "msgpack", id="truncated"),
        pytest.param(b"", "msgpack", id="empty"),
        pytest.param(b"\xdd\xff\xff\xff\xff", "msgpack", id="list of four billion announced"),
        pytest.param(b"\xc6\xff\xff\xff\xff", "msgpack", id="four gigabytes announced"),
        pytest.param(b"\x91" * 100_000, "nested", id="nested too deep for the parser"),
        pytest.param(msgpack.packb(nested(MAX_DEPTH + 1)), "nested", id="nested too deep for us"),
        pytest.param(msgpack.packb([[None] * 30_000] * 2), "more than", id="flood of tiny values"),
        pytest.param(b"\xa1\xff", "UnicodeDecodeError", id="not UTF-8"),
    ],
)
def test_outside_the_subset_is_refused_with_a_reason(data, reason):
    with pytest.raises(PackingError, match=reason):
        unpack(data, max_bytes=1 << 20)


@pytest.mark.parametrize(
    "first", [b"\xdd\x00\x00\xc3\x50", b"\xdf\x00\x00\xc3\x50\xa0", b"\x9f", b"\xdc\xff\xff", b"\x91"]
)
def test_lists_in_lists_take_no_room_for_what_they_announce(first):
    data = first * 1020 + b"\xc0" * 50_000
    tracemalloc.start()
    try:
        with pytest.raises(PackingError):
            unpack(data, max_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [[], {}, None])
def test_what_may_be_packed_may_be_unpacked_to_the_last_level(value):
    for _ in range(MAX_DEPTH):
        value = [value]
    assert unpack(pack(value), max_bytes=100) == value


def test_the_size_is_checked_before_anything_else():
    with pytest.raises(PackingError, match="11 bytes, at most 10"):
        unpack(b"\xc0" * 11, max_bytes=10)


def test_a_map_is_a_map():
    with pytest.raises(PackingError, match="not a map"):
        unpack_map(pack([1]), max_bytes=100)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"x": {1, 2}}, nested(MAX_DEPTH + 1), 2**64])
def test_only_the_subset_can_be_packed(value):
    with pytest.raises(PackingError):
        pack(value)
