"""Hostile bytes on the streams of real hosts, and hosts that answer with nonsense: an error, never trouble here."""

from __future__ import annotations

import asyncio
import contextlib

import msgpack
import pytest
import pytest_asyncio

from blockswarm.dht import frames, rpc
from blockswarm.dht.rpc import Reply
from tests.dht.world import eventually, fails, new_host, read_head, two_hosts

# One pair of hosts for the whole file: starting them is most of the time.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair():
    async with two_hosts() as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(rpc, "LINGER_SECONDS", 0.2)
    monkeypatch.setattr(rpc, "GONE_SECONDS", 0.05)


async def echo(request):
    return Reply({"method": request.method, "caller": request.peer_id, **request.body}, request.blob)


async def answer_to(pair, data, *, eof=False):
    """What the server answers to raw bytes, then whether it closes the stream (None: it does without an answer)."""
    server, client = pair
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        writer.write(data)
        if eof:
            writer.write_eof()
        try:
            head = await read_head(reader)
        except asyncio.IncompleteReadError:
            return None
        with contextlib.suppress(OSError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        return head


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\xff" * 4, id="oversize header"),
        pytest.param(b"\x00\x00\x00\x00", id="empty header"),
        pytest.param(b"\x00\x00\x00\x05hello", id="no msgpack"),
        pytest.param(b"\x00\x00\x00\x01\xc0", id="no map"),
        pytest.param(b"\x00\x00\x00\x04" + b"\xdd\xff\xff\xff", id="huge list announced"),
    ],
)
async def test_garbage_is_answered_and_the_stream_closed(pair, data):
    head = await answer_to(pair, data)
    assert head is not None and head.code == "bad-request"
    await still_alive(pair)


async def still_alive(pair):
    server, client = pair
    await client.call(server.peer_id, "hello", {}, timeout=10)
    await eventually(lambda: server._server._calls.total() == 0 and server._server._blob_bytes == 0)


async def test_an_oversize_blob_is_turned_down_from_its_header_alone(pair):
    pair[0].register("put", echo, max_blob=1000, run_bound=False)
    head = await answer_to(pair, frames.encode_request("put", {}, blob_length=frames.MAX_BLOB))
    assert head is not None and head.code == "too-large"
    await still_alive(pair)


@pytest.mark.parametrize("keep", [0, 2, 6, -3])
async def test_a_request_that_ends_early_is_no_request(pair, keep):
    called = []

    async def note(request):
        called.append(request)
        return Reply({})

    pair[0].register("put", note, max_blob=1000, run_bound=False)
    whole = frames.encode_request("put", {}, blob_length=10) + b"0123456789"
    assert await answer_to(pair, whole[: keep or None] if keep else b"", eof=True) is None
    assert called == []
    await still_alive(pair)


async def test_a_blob_that_stops_coming_is_given_up(pair, monkeypatch):
    server, client = pair
    # The defaults of a function are fixed when it is defined: replace the limit where it is used.
    whole = rpc.read_blob
    monkeypatch.setattr(rpc, "read_blob", lambda reader, length, traffic, stall=0.3: whole(reader, length, traffic, stall=stall))  # fmt: skip # noqa: E501
    server.register("put", echo, max_blob=1 << 20, run_bound=False)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        writer.write(frames.encode_request("put", {}, blob_length=1 << 20) + b"x" * 1000)
        await eventually(lambda: server._server._blob_bytes)
        await eventually(lambda: not server._server._blob_bytes)
        with contextlib.suppress(OSError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
    await still_alive(pair)


async def test_an_idle_stream_is_closed(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "IDLE_SECONDS", 0.2)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        writer.write(frames.encode_request("hello", {}))
        assert (await read_head(reader)).ok
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_header_that_drips_is_given_up(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "HEADER_SECONDS", 0.2)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        writer.write(b"\x00\x00\x01\x00abc")
        with contextlib.suppress(OSError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
    await still_alive(pair)


async def test_a_caller_that_does_not_read_its_answer_is_given_up(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "STALL_SECONDS", 0.5)
    big = bytes(64 << 20)

    async def flood(request):
        return Reply({}, big)

    server.register("flood", flood, run_bound=False)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (_, writer):
        writer.write(frames.encode_request("flood", {}))
        await eventually(lambda: server._server._calls.total() == 1)
        await eventually(lambda: server._server._calls.total() == 0)
    await still_alive(pair)


async def test_answers_that_nobody_reads_do_not_pile_up(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "MAX_BLOBS_IN_FLIGHT", 100 << 20)
    big = bytes(64 << 20)

    async def flood(request):
        return Reply({}, big)

    server.register("flood", flood, run_bound=False)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (_, writer):
        writer.write(frames.encode_request("flood", {}))
        await eventually(lambda: server._server._blob_bytes == len(big))
        call = client.call(server.peer_id, "flood", {}, max_blob=len(big), timeout=20)
        assert (await fails(call, "busy")).detail == {"retry_after": 1.0}
        await client.call(server.peer_id, "hello", {}, timeout=10)
    await still_alive(pair)


@contextlib.asynccontextmanager
async def streams_in_use(pair, count):
    """Streams of the client, on each of which the server is at work."""
    server, client = pair
    begun, end = asyncio.Semaphore(0), asyncio.Event()

    async def hold(request):
        begun.release()
        await end.wait()
        return Reply({})

    server.register("hold", hold, max_blob=0, run_bound=False)
    await eventually(lambda: not server._server._streams)  # those of the tests before
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            stream = client.control.open_stream(server.peer_id, frames.PROTOCOL_ID)
            _, writer = await stack.enter_async_context(stream)
            writer.write(frames.encode_request("hold", {}))
            await asyncio.wait_for(begun.acquire(), 10)
        try:
            yield
        finally:
            end.set()


async def test_at_most_so_many_streams(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "MAX_STREAMS", 1)
    async with streams_in_use(pair, 1):
        await fails(client.call(server.peer_id, "hello", {}, timeout=10), "unreachable")


async def test_one_peer_cannot_hold_all_the_streams(pair, monkeypatch):
    server, client = pair
    limit = 4  # one for the call below, the others for what a host that has just started asks by itself
    monkeypatch.setattr(rpc, "MAX_STREAMS_PER_PEER", limit)
    async with streams_in_use(pair, limit):
        await fails(client.call(server.peer_id, "hello", {}, timeout=10), "unreachable")
        other = await new_host(initial_peers=server.addresses())
        try:
            other.learn(server.peer_id, server.addresses())
            await other.call(server.peer_id, "hello", {}, timeout=10)
        finally:
            await other.stop()


async def test_several_requests_follow_each_other_on_one_stream(pair):
    server, client = pair
    server.register("echo", echo, max_blob=10, run_bound=False)
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        for number in range(3):
            writer.write(frames.encode_request("echo", {"i": number}, blob_length=2) + b"ab")
            head = await read_head(reader)
            assert head.body["i"] == number and await reader.readexactly(head.blob_length) == b"ab"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"\x00\x00\x00\x03abc", id="garbage"),
        pytest.param(b"\xff\xff\xff\xff", id="oversize"),
        pytest.param(b"\x00\x00\x00\x01\xc0", id="no map"),
    ],
)
async def test_nonsense_in_place_of_an_answer_is_a_protocol_error(pair, monkeypatch, reply):
    server, client = pair

    async def babble(peer_id, reader, writer):
        writer.write(reply)
        await reader.read()

    monkeypatch.setattr(server._streams, "_handler", babble)
    assert "nonsense" in (await fails(client.call(server.peer_id, "hello", {}, timeout=10), "protocol")).text


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
async def test_an_answer_that_ends_early_is_no_answer(pair, monkeypatch, cut):
    server, client = pair
    whole = frames.encode_reply({"x": 1}, blob_length=5) + b"12345"

    async def stop_short(peer_id, reader, writer):
        writer.write(whole[:cut])
        await writer.drain()

    monkeypatch.setattr(server._streams, "_handler", stop_short)
    await fails(client.call(server.peer_id, "hello", {}, max_blob=10, timeout=10), "unreachable")


async def test_msgpack_of_another_shape_in_a_body_is_the_handlers_business_only_within_the_subset(pair):
    header = msgpack.packb({"v": 1, "run": None, "m": "hello", "b": {"x": msgpack.ExtType(1, b"y")}, "n": 0})
    head = await answer_to(pair, len(header).to_bytes(4, "big") + header)
    assert head is not None and head.code == "bad-request"
