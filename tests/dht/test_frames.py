"""RPC frames: exact round trips, and nothing but `FrameError` from whatever bytes."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.dht import frames
from blockswarm.dht.errors import FrameError


def parts(frame):
    length = frames.header_length(frame[:4])
    assert len(frame) == 4 + length
    return frame[4:]


@given(
    st.text(st.characters(codec="ascii", categories=("L",)), min_size=1, max_size=64),
    st.dictionaries(st.text(max_size=8), st.integers(0, 100) | st.binary(max_size=8), max_size=4),
    st.none() | st.binary(min_size=32, max_size=32),
    st.integers(0, frames.MAX_BLOB),
)
def test_a_request_comes_back(method, body, run, length):
    head = frames.decode_request(parts(frames.encode_request(method, body, run=run, blob_length=length)))
    assert head == frames.RequestHead(frames.PROTOCOL_VERSION, run, method, body, length)


def test_replies_come_back():
    assert frames.decode_reply(parts(frames.encode_reply({"x": 1}, blob_length=7))) == frames.ReplyHead(
        True, {"x": 1}, 7
    )
    assert frames.decode_reply(parts(frames.encode_error("busy", "later", {"retry_after": 2.0}))) == frames.ReplyHead(
        False, {"retry_after": 2.0}, 0, "busy", "later"
    )


mutations = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8)


@given(mutations, st.booleans())
def test_a_damaged_header_is_refused_or_still_a_header(changes, reply):
    frame = frames.encode_reply({"a": [1, "x"]}) if reply else frames.encode_request("hello", {"a": [1, "x"]})
    header = bytearray(frame[4:])
    for place, value in changes:
        header[place % len(header)] = value
    with contextlib.suppress(FrameError):
        (frames.decode_reply if reply else frames.decode_request)(bytes(header))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_frame_error(data):
    for decode in (frames.header_length, frames.decode_request, frames.decode_reply):
        with contextlib.suppress(FrameError):
            decode(data)


@pytest.mark.parametrize("prefix", [b"\x00\x00\x00\x00", b"\x00\x10\x00\x01", b"\xff\xff\xff\xff", b"\x00\x00", b""])
def test_an_impossible_length_is_refused_before_reading(prefix):
    with pytest.raises(FrameError, match="1 to 1048576 are allowed"):
        frames.header_length(prefix)


GOOD = {"v": 1, "run": None, "m": "hello", "b": {}, "n": 0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": "1"}, "'v'"),
        ({"v": -1}, "'v'"),
        ({"v": True}, "'v'"),
        ({"run": b"x" * 31}, "'run'"),
        ({"run": "x" * 32}, "'run'"),
        ({"m": ""}, "'m'"),
        ({"m": "x" * 65}, "'m'"),
        ({"m": b"hello"}, "'m'"),
        ({"b": []}, "'b'"),
        ({"n": -1}, "'n'"),
        ({"n": 1.0}, "'n'"),
        ({"n": frames.MAX_BLOB + 1}, "'n'"),
        ({"extra": 1}, "unknown field 'extra'"),
    ],
)
def test_an_ill_typed_request_names_the_field(change, reason):
    with pytest.raises(FrameError, match=reason):
        frames.decode_request(msgpack.packb(GOOD | change))


def test_a_missing_field_is_noticed():
    for field in ("v", "m", "b", "n"):
        with pytest.raises(FrameError, match=f"'{field}'"):
            frames.decode_request(msgpack.packb({k: v for k, v in GOOD.items() if k != field}))


def test_another_version_is_returned_so_that_the_refusal_can_name_it():
    assert frames.decode_request(msgpack.packb({"v": 9, "whatever": "comes"})).version == 9
    assert "the caller must upgrade" in frames.version_mismatch(0)
    assert "the answering peer must upgrade" in frames.version_mismatch(2)


@pytest.mark.parametrize("reply", [{}, {"ok": 1}, {"ok": True}, {"ok": True, "b": {}, "n": -1}, {"ok": False}])
def test_an_ill_typed_reply_is_refused(reply):
    with pytest.raises(FrameError):
        frames.decode_reply(msgpack.packb(reply))


def test_a_strangers_text_stays_one_printable_line():
    head = frames.decode_reply(msgpack.packb({"ok": False, "e": "no\x1b[2J", "t": "a\nb\x07" + "x" * 5000, "b": {}}))
    assert head.code == "no [2J"
    assert head.text.startswith("a b x") and len(head.text) == frames.MAX_TEXT


def test_what_cannot_be_sent_is_refused_here():
    with pytest.raises(FrameError, match="too large to send"):
        frames.encode_request("m", {"x": b"y" * (1 << 20)})
    with pytest.raises(FrameError, match="a set cannot be sent"):
        frames.encode_reply({"x": {1}})
