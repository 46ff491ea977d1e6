"""Calls between real hosts: what honest callers get, and what hostile bytes do not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

import pytest
import pytest_asyncio

from blockswarm.dht import frames, rpc
from blockswarm.dht.errors import FrameError, RpcRefused
from blockswarm.dht.rpc import Reply
from tests.dht.world import NOBODY, eventually, fails, read_head, two_hosts

# One pair of hosts for the whole file: starting them is most of the time.
pytestmark = pytest.mark.asyncio(loop_scope="module")
DIGEST = b"r" * 32


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


async def test_a_call_brings_body_and_blob_and_the_proven_caller(pair):
    server, client = pair
    server.register("echo", echo, max_blob=1000, run_bound=False)
    reply = await client.call(server.peer_id, "echo", {"x": [1, b"y"]}, blob=b"z" * 1000, max_blob=1000, timeout=10)
    assert reply.body == {"method": "echo", "caller": client.peer_id, "x": [1, b"y"]}
    assert reply.blob == b"z" * 1000


async def test_large_blobs_arrive_whole_both_ways_and_are_counted(pair):
    server, client = pair
    server.register("echo", echo, max_blob=1 << 25, run_bound=False)
    data = os.urandom((8 << 20) + 7)
    sent, received = client.bytes_sent, client.bytes_received
    reply = await client.call(server.peer_id, "echo", {}, blob=memoryview(data), max_blob=1 << 25, timeout=60)
    assert hashlib.sha256(reply.blob).digest() == hashlib.sha256(data).digest()
    for counted in (client.bytes_sent - sent, client.bytes_received - received):
        assert len(data) < counted < len(data) + 4096


async def test_many_calls_at_once(pair):
    server, client = pair
    server.register("echo", echo, max_blob=1 << 20, run_bound=False)
    blob = os.urandom(100_000)
    replies = await asyncio.gather(
        *(client.call(server.peer_id, "echo", {"i": i}, blob=blob, max_blob=1 << 20, timeout=60) for i in range(30))
    )
    assert [reply.body["i"] for reply in replies] == list(range(30))
    assert all(reply.blob == blob for reply in replies)


async def test_members_of_another_run_are_turned_down_with_the_reason(pair):
    server, client = pair
    server.register("secret", echo)
    error = await fails(client.call(server.peer_id, "secret", {}, timeout=10), "wrong-run")
    assert "this peer is in no run, the call is for none" in error.text
    server.set_run(DIGEST)
    client.set_run(b"s" * 32)
    error = await fails(client.call(server.peer_id, "secret", {}, timeout=10), "wrong-run")
    assert "manifest 727272727272, the call is for 737373737373" in error.text
    client.set_run(DIGEST)
    await client.call(server.peer_id, "secret", {}, timeout=10)
    for host in pair:
        host.set_run(None)


async def test_different_software_versions_meet_and_hear_who_must_upgrade(pair):
    server, client = pair
    async with client.control.open_stream(server.peer_id, frames.PROTOCOL_ID) as (reader, writer):
        writer.write(frames.encode_request("hello", {}, version=0))
        head = await read_head(reader)
        assert head.code == "protocol" and "the caller must upgrade blockswarm" in head.text
        # The stream is still in step: a proper request may follow.
        writer.write(frames.encode_request("hello", {}))
        assert (await read_head(reader)).ok


async def test_refusals_carry_code_text_and_detail(pair):
    server, client = pair

    async def refuse(request):
        raise RpcRefused("unknown-state", "I have newer ones", {"states": [{"round": 3}]})

    server.register("ask", refuse, run_bound=False)
    error = await fails(client.call(server.peer_id, "ask", {}, timeout=10), "unknown-state")
    assert error.text == "I have newer ones" and error.detail == {"states": [{"round": 3}]}
    await fails(client.call(server.peer_id, "no-such", {}, timeout=10), "unknown-method")


@pytest.mark.parametrize("error", [ValueError, OSError, TimeoutError, EOFError, KeyError])
async def test_a_failing_handler_does_not_leak_its_text_and_is_logged_once(pair, caplog, error):
    server, client = pair

    async def broken(request):
        raise error("the password is 1234")

    server.register("broken", broken, run_bound=False)
    for _ in range(3):
        failure = await fails(client.call(server.peer_id, "broken", {}, timeout=10), "internal")
        assert "1234" not in str(failure) + str(failure.detail)
    assert caplog.text.count("handler of broken failed") == 1


async def test_a_reply_that_cannot_be_sent_is_an_internal_error(pair):
    server, client = pair

    async def wrong(request):
        return Reply({"x": {1, 2}})

    server.register("wrong", wrong, run_bound=False)
    await fails(client.call(server.peer_id, "wrong", {}, timeout=10), "internal")
    with pytest.raises(FrameError):
        await client.call(server.peer_id, "wrong", {"x": object()}, timeout=10)


async def test_a_handler_that_takes_too_long_is_stopped(pair):
    server, client = pair
    stopped = asyncio.Event()

    async def slow(request):
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    server.register("slow", slow, run_bound=False, timeout=0.2)
    error = await fails(client.call(server.peer_id, "slow", {}, timeout=10), "timeout")
    assert "took longer than 0.2 s" in error.text
    assert stopped.is_set()


async def test_a_caller_does_not_wait_longer_than_it_said(pair):
    server, client = pair

    async def slow(request):
        await asyncio.sleep(60)

    server.register("slow", slow, run_bound=False)
    start = time.monotonic()
    await fails(client.call(server.peer_id, "slow", {}, timeout=0.3), "timeout")
    assert time.monotonic() - start < 3


async def test_a_cancelled_call_closes_its_stream_and_stops_the_handler(pair):
    server, client = pair
    entered, stopped = asyncio.Event(), asyncio.Event()

    async def slow(request):
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    server.register("slow", slow, run_bound=False, timeout=60)
    call = asyncio.create_task(client.call(server.peer_id, "slow", {}, timeout=60))
    await asyncio.wait_for(entered.wait(), 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(stopped.wait(), 10)
    await eventually(lambda: server._server._streams.total() == 0)


async def test_an_unknown_peer_is_unreachable_and_oneself_too(pair):
    _, client = pair
    assert NOBODY in (await fails(client.call(NOBODY, "hello", {}, timeout=10), "unreachable")).text
    assert "itself" in (await fails(client.call(client.peer_id, "hello", {}, timeout=10), "unreachable")).text


async def test_a_blob_larger_than_allowed_is_refused_before_it_is_read(pair):
    server, client = pair
    asked = []

    def limit(peer_id, body, length):
        asked.append((peer_id, body, length))
        if body.get("bad"):
            raise RpcRefused("bad-request", "not from you")
        return 1000

    server.register("put", echo, max_blob=limit, run_bound=False)
    before = server.bytes_received
    error = await fails(client.call(server.peer_id, "put", {}, blob=b"x" * (16 << 20), timeout=20), "too-large")
    assert "16777216 bytes, at most 1000" in error.text
    await fails(client.call(server.peer_id, "put", {"bad": True}, blob=b"x" * 10, timeout=20), "bad-request")
    assert server.bytes_received - before < 1000
    assert asked[0] == (client.peer_id, {}, 16 << 20)


async def test_a_reply_larger_than_expected_is_not_read(pair):
    server, client = pair

    async def flood(request):
        return Reply({}, b"x" * (1 << 20))

    server.register("flood", flood, run_bound=False)
    error = await fails(client.call(server.peer_id, "flood", {}, max_blob=1000, timeout=20), "too-large")
    assert "1048576 bytes, at most 1000 expected" in error.text


async def test_at_most_so_many_calls_of_one_peer_at_once(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "MAX_CALLS_PER_PEER", 2)
    release = asyncio.Event()

    async def wait(request):
        await release.wait()
        return Reply({})

    server.register("wait", wait, run_bound=False)
    waiting = [asyncio.create_task(client.call(server.peer_id, "wait", {}, timeout=30)) for _ in range(2)]
    await eventually(lambda: server._server._calls[client.peer_id] == 2)
    error = await fails(client.call(server.peer_id, "wait", {}, timeout=30), "busy")
    assert error.detail == {"retry_after": 1.0}
    release.set()
    await asyncio.gather(*waiting)
    await client.call(server.peer_id, "wait", {}, timeout=30)


async def test_at_most_so_many_calls_and_bytes_at_once_in_all(pair, monkeypatch):
    server, client = pair
    monkeypatch.setattr(rpc, "MAX_BLOBS_IN_FLIGHT", 1000)
    monkeypatch.setattr(rpc, "MAX_CALLS", 2)
    release = asyncio.Event()

    async def wait(request):
        await release.wait()
        return Reply({})

    server.register("wait", wait, max_blob=2000, run_bound=False)
    # A blob above the whole allowance is taken when it is alone, or it could never be sent.
    waiting = [asyncio.create_task(client.call(server.peer_id, "wait", {}, blob=b"x" * 1500, timeout=30))]
    await eventually(lambda: server._server._blob_bytes == 1500)
    error = await fails(client.call(server.peer_id, "wait", {}, blob=b"x", timeout=30), "busy")
    assert "too much at once" in error.text
    waiting.append(asyncio.create_task(client.call(server.peer_id, "wait", {}, timeout=30)))
    await eventually(lambda: server._server._calls.total() == 2)
    await fails(client.call(server.peer_id, "wait", {}, timeout=30), "busy")
    release.set()
    await asyncio.gather(*waiting)
    assert server._server._blob_bytes == 0 and server._server._calls.total() == 0


class CountingWriter:
    """Takes what is written; every write of a real one wakes p2pd."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.transport = self

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes | memoryview) -> None:
        self.writes.append(bytes(data))

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    ("size", "writes"), [(0, 1), (1, 1), (rpc.SMALL_BLOB, 1), (rpc.SMALL_BLOB + 1, 2), (rpc.CHUNK + 1, 3)]
)
async def test_a_small_answer_is_one_write_and_a_large_one_comes_in_pieces(size: int, writes: int) -> None:
    writer, traffic, blob = CountingWriter(), rpc.Traffic(), bytes(size)
    await rpc.write_frame(writer, b"header", memoryview(blob), traffic)
    assert b"".join(writer.writes) == b"header" + blob
    assert len(writer.writes) == writes
    assert traffic.sent == len(b"header") + size
