"""Bodies from strangers: every field typed and bounded, the error names the field, and nothing foreign is echoed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.model.layout import CHUNK_BYTES
from blockswarm.swarm import messages
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import (
    Body,
    Optional,
    flag,
    integer,
    listed,
    mapped,
    number,
    octets,
    one_of,
    peer_id,
    text,
)
from blockswarm.swarm.messages import (
    ChunkRequest,
    HeadRequest,
    LogprobsRequest,
    ManifestRequest,
    StateHead,
    StateName,
    StatesReply,
    StatesRequest,
    SweepRequest,
)

A, B = bytes(32), b"\1" * 32
PEER = "12D3KooWGRUaGPTzRXxMEZ5W1bmcHkE5jFM2tFTUrMCiVcwkhAvp"


def head(values: int = CHUNK_BYTES // 4 + 3, **changes: Any) -> StateHead:
    chunks = tuple(hashlib.sha256(index.to_bytes(4, "big")).digest() for index in range(-(-values * 4 // CHUNK_BYTES)))
    digest = hashlib.sha256(b"".join(chunks)).digest()
    fields = {"round": 7, "digest": digest, "samples": 900, "values": values, "chunks": chunks, "certificate": b"c"}
    return StateHead(**fields | changes)


def with_momentum(values: int = CHUNK_BYTES // 4 + 3, **changes: Any) -> StateHead:
    plain = head(values)
    changes = {"momentum": plain.chunks, "digest": hashlib.sha256(2 * plain.digest).digest()} | changes
    return replace(plain, **changes)


LOGPROBS = LogprobsRequest(1, A, B, (b"abc", b"defg"), (0, 3))
SWEEP = SweepRequest(1, A, B, (b"abc", b"defg"), (0, 64), (2, 0), seed=5)
EXAMPLES: list[Any] = [
    ManifestRequest("demo-0123456789ab"),
    StatesRequest((A, B)),
    StatesReply(2, (StateName(9, A), StateName(8, B)), ()),
    LOGPROBS,
    SWEEP,
    HeadRequest(-1),
    HeadRequest(3, A),
    head(),
    ChunkRequest(0, A, 2),
]
OPTIONAL = {(HeadRequest, "digest"), (StatesRequest, "use")}


def refused(kind: Any, body: object, field: str, reason: str = "") -> None:
    with pytest.raises(MessageError) as caught:
        kind.parse(body)
    assert caught.value.field == field
    assert reason in caught.value.reason


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_body_survives_the_wire(example: Any) -> None:
    assert type(example).parse(msgpack.unpackb(msgpack.packb(example.to_body()))) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_body_with_a_key_missing_or_a_key_too_many_is_refused(example: Any) -> None:
    body = example.to_body()
    with pytest.raises(MessageError, match=r"known|unknown key"):
        type(example).parse(body | {"colour": 1})
    for key in body:
        if (type(example), key) not in OPTIONAL:
            refused(type(example), {k: v for k, v in body.items() if k != key}, key, "missing")


@given(st.sampled_from(EXAMPLES), st.data())
def test_whatever_stands_in_a_field_the_answer_is_a_body_or_a_message_error(example: Any, data: st.DataObject) -> None:
    body = example.to_body()
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=40),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    )
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(junk)
    try:
        type(example).parse(body)
    except MessageError as error:
        assert error.field
        assert len(str(error)) < 200


def test_a_body_that_is_no_map_is_refused() -> None:
    for junk in (None, 3, [], b"x", "x"):
        refused(HeadRequest, junk, "body", "must be a map")


def test_a_key_that_is_no_text_is_refused_without_repeating_it() -> None:
    refused(HeadRequest, {b"\x1b[2J": 1}, "a key of type bytes", "unknown key")


# -- serving -------------------------------------------------------------------------------------------------------


def test_rows_are_counted_after_take() -> None:
    assert (LOGPROBS.positions, LOGPROBS.rows) == (7, 4)
    assert (SWEEP.positions, SWEEP.rows) == (7, 5)


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"digest": b"short"}, "digest", "must be 32 bytes, is 5"),
        ({"block": True}, "block", "must be a whole number, is bool"),
        ({"block": -1}, "block", "must be 0 to 255, is -1"),
        ({"windows": []}, "windows", "must have 1 to 64 items, has 0"),
        ({"windows": [b"a"] * 65, "take": [0] * 65}, "windows", "must have 1 to 64 items, has 65"),
        ({"windows": [b"", b"a"]}, "windows[0]", "must be 1 to 4096 bytes, is 0"),
        ({"windows": ["abc", b"d"]}, "windows[0]", "must be bytes, is str"),
        ({"windows": [bytes(4000), bytes(97)]}, "windows", "hold 4097 bytes, at most 4096"),
        ({"take": [0]}, "take", "has 1 items for 2 windows"),
        ({"take": [3, 0]}, "take[0]", "must be below the window's 3 bytes, is 3"),
        ({"take": [0, -1]}, "take[1]", "must be 0 to 4095"),
    ],
)
def test_a_serving_request_past_its_caps_is_refused(changes: dict[str, Any], field: str, reason: str) -> None:
    refused(LogprobsRequest, LOGPROBS.to_body() | changes, field, reason)


def test_a_sweep_needs_a_start_for_each_window() -> None:
    refused(SweepRequest, SWEEP.to_body() | {"starts": [0]}, "starts", "has 1 items for 2 windows")
    refused(SweepRequest, SWEEP.to_body() | {"starts": [0, -1]}, "starts[1]")
    refused(SweepRequest, SWEEP.to_body() | {"seed": 2**63}, "seed")


def test_a_holder_lists_a_bounded_number_of_states() -> None:
    body = {"block": 0, "states": [{"round": 1, "digest": A}] * 17, "embedding": []}
    refused(StatesReply, body, "states", "must have 0 to 16 items, has 17")
    body["states"] = [{"round": 1, "digest": A}, {"round": -1, "digest": A}]
    refused(StatesReply, body, "states[1].round")


def test_a_client_names_a_bounded_number_of_pinned_states() -> None:
    refused(StatesRequest, {"use": [A] * 17}, "use", "must have 0 to 16 items, has 17")
    refused(StatesRequest, {"use": [b"short"]}, "use[0]")
    assert StatesRequest.parse({}) == StatesRequest() and StatesRequest().to_body() == {}


# -- states --------------------------------------------------------------------------------------------------------


def test_a_head_must_fit_the_size_the_manifest_says() -> None:
    with pytest.raises(MessageError, match="values: must be 10, is 12"):
        StateHead.parse(head(12).to_body(), values=10)


def test_a_head_has_a_momentum_where_the_manifest_says_so() -> None:
    plain, both = head().to_body(), with_momentum().to_body()
    assert "momentum" not in plain
    assert StateHead.parse(plain, momentum=False) == head()
    assert StateHead.parse(both, momentum=True) == with_momentum()
    for body, momentum, reason in ((plain, True, "must be there"), (both, False, "must not be there")):
        with pytest.raises(MessageError, match=reason):
            StateHead.parse(body, momentum=momentum)
    refused(StateHead, with_momentum(momentum=(A,)).to_body(), "momentum", "1 digests do not fit")
    refused(StateHead, with_momentum(digest=head().digest).to_body(), "chunks", "do not hash to the state's digest")


def test_a_head_whose_chunks_do_not_hash_to_its_digest_is_refused() -> None:
    refused(StateHead, head(digest=A).to_body(), "chunks", "do not hash to the state's digest")
    body = head().to_body()
    refused(StateHead, body | {"chunks": body["chunks"][:1]}, "chunks", "do not fit")


def test_the_last_chunk_may_be_shorter() -> None:
    example = head(CHUNK_BYTES // 4 + 3)
    assert [example.chunk_bytes(index) for index in range(2)] == [CHUNK_BYTES, 12]
    assert head(CHUNK_BYTES // 4).chunk_bytes(0) == CHUNK_BYTES


def test_a_momentum_counts_for_the_most_chunks_a_state_may_have() -> None:
    values = messages.MAX_VALUES // 2
    assert StateHead.parse(with_momentum(values).to_body()).chunk_count == messages.MAX_CHUNKS
    refused(StateHead, with_momentum(values + 1).to_body(), "momentum", "chunks in all")


def test_a_head_of_the_largest_state_fits_the_header_of_a_frame() -> None:
    largest = head(messages.MAX_VALUES, certificate=bytes(messages.MAX_CERTIFICATE_BYTES))
    assert len(msgpack.packb(largest.to_body())) < 1 << 20


# -- readers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (octets(2), [b"ab"], [b"a", b"abc", "ab", bytearray(2), None]),
        (octets(most=2, least=1), [b"a", b"ab"], [b"", b"abc"]),
        (octets(), [b"", b"x" * 99], [1]),
        (text(most=3), ["", "äbc"], ["abcd", "a\nb", "\x1b", b"a", 1]),
        (peer_id(), [PEER], ["", "0OIl", "x" * 200, 3]),
        (one_of("carry", "drop"), ["carry"], ["Carry", "", None, 0]),
        (integer(1, 3), [1, 3], [0, 4, 1.0, True, "1", 2**70]),
        (flag(), [True, False], [0, 1, None]),
        (listed(integer(0, 9), most=2), [[], [1, 2]], [[1, 2, 3], [10], "12", {1: 2}, None]),
        (listed(integer(0, 9), most=3, unique=True), [[1, 2]], [[1, 1]]),
        (mapped(text(most=2), integer(0, 1), most=1), [{}, {"a": 1}], [{"abc": 1}, {"a": 2}, {"a": 1, "b": 1}, []]),
    ],
)
def test_readers_take_what_they_say_and_nothing_else(reader: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        result = reader("x", value)
        assert result == (tuple(value) if isinstance(value, list) else value)
    for value in bad:
        with pytest.raises(MessageError):
            reader("x", value)


def test_numbers_are_finite_floats() -> None:
    assert number(0, 1)("x", 1) == 1.0
    assert isinstance(number(0, 1)("x", 1), float)
    for bad in (float("nan"), float("inf"), 1.5, "1", True, None, 10**400):
        with pytest.raises(MessageError):
            number(0, 1)("x", bad)


def test_bodies_nest_and_name_the_way_to_the_field() -> None:
    outer = Body(votes=listed(Body(peer=peer_id(), round=integer(0, 9)), most=3), note=Optional(text(most=5), "none"))
    assert outer.read({"votes": [{"peer": PEER, "round": 1}]}) == {
        "votes": ({"peer": PEER, "round": 1},),
        "note": "none",
    }
    with pytest.raises(MessageError, match=r"^votes\[0\]\.round: must be 0 to 9, is 12$"):
        outer.read({"votes": [{"peer": PEER, "round": 12}]})
