"""The light transport against a real p2pd: what arrives, what is refused, and that nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

CODE = """
import functools, trio
from blockswarm.dht.errors import RpcError
from blockswarm.swarm.link import Link
from blockswarm.swarm.thread import TrioThread

thread = TrioThread()
link = Link(thread.nursery)
link.prepare()
peer = peers[0].rsplit("/", 1)[1]
link.learn(peer, peers)

def call(method, body={}, timeout=20, **more):
    return thread.run(functools.partial(link.call, peer, method, body, timeout=timeout, **more))

def error(method, body={}, **more):
    begun = time.monotonic()
    try:
        call(method, body, **more)
    except RpcError as failure:
        return [failure.code, failure.text, failure.detail, time.monotonic() - begun]

def finish(**values):
    thread.run(link.close)
    thread.close()
    result(**values)
"""


@pytest.fixture(scope="module")
def odd_peer(swarm_script: Callable[[str], Any]) -> Iterator[Any]:
    """One odd peer for all of these tests."""
    running = swarm_script("odd_peer.py")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def odd(odd_peer: Any) -> Callable[[str], dict[str, Any]]:
    """Run code against the odd peer."""
    return lambda code: odd_peer.client(CODE + code)


def test_bodies_and_blobs_arrive_whole_in_both_directions(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
first = call("echo", {"a": 1, "b": [b"x", "y", None, 2.5]}, run=bytes(range(32)))
blob = np.random.default_rng(0).bytes(3_000_000)
echoed = call("echo", blob=blob, max_blob=len(blob))
big = call("big", {"size": 4 << 20}, max_blob=4 << 20)
from blockswarm.dht.peer_id import is_peer_id
finish(body=first.body["got"] == {"a": 1, "b": [b"x", "y", None, 2.5]}, run=first.body["run"] == bytes(range(32)),
       caller=is_peer_id(first.body["peer_id"]), whole=echoed.blob == blob, size=len(big.blob),
       sent=link.bytes_sent, received=link.bytes_received)
"""
    )
    assert found["body"] and found["run"] and found["caller"] and found["whole"]
    assert found["size"] == 4 << 20
    assert 3_000_000 < found["sent"] < 3_001_000
    assert 7_194_304 < found["received"] < 7_195_304


def test_refusals_and_bad_answers_become_errors_and_the_next_call_works(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
odd_ones = ("refuse", "early-end", "garbage", "nonsense", "huge-header")
said = {method: error(method, max_blob=1000) for method in odd_ones}
said["sleep"] = error("sleep", {"seconds": 30}, timeout=0.5)
said["big"] = error("big", {"size": 5000}, max_blob=4999)
said["full"] = error("full", blob=bytes(4 << 20))
finish(said=said, after=call("echo", {"still": "here"}).body["got"])
"""
    )
    said = found["said"]
    assert said["refuse"][:3] == ["busy", "come back", {"retry_after": 0.5}]
    assert said["early-end"][0] == "unreachable" and "broke off early-end" in said["early-end"][1]
    assert {said[name][0] for name in ("garbage", "nonsense", "huge-header")} == {"protocol"}
    assert said["sleep"][0] == "timeout" and said["sleep"][3] < 10
    assert said["big"][0] == "too-large" and "at most 4999" in said["big"][1]
    assert said["full"][:3] == ["too-large", "no room", {"most": 7}]
    assert found["after"] == {"still": "here"}


def test_calls_run_side_by_side_and_reuse_streams(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
async def many(seconds):
    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(functools.partial(link.call, peer, "sleep", {"seconds": seconds}, timeout=30))

thread.run(many, 0.0)
begun = time.monotonic()
thread.run(many, 1.0)
together = time.monotonic() - begun
streams = len(link._idle[peer])
for _ in range(20):
    call("echo")
same = len(link._idle[peer])
ended = [call("once", {"n": n}).body["got"]["n"] for n in range(5)]
finish(together=together, streams=streams, same=same, ended=ended)
"""
    )
    assert found["together"] < 8, "twelve seconds one after the other"
    assert found["streams"] == found["same"] <= 12
    assert found["ended"] == [0, 1, 2, 3, 4], "a stream the peer has ended is replaced unseen"


def test_calls_given_up_at_any_moment_do_not_hurt_the_connection(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
async def give_up(after):
    with trio.move_on_after(after):
        await link.call(peer, "echo", {}, blob=bytes(200_000), max_blob=1 << 20, timeout=30)

async def storm():
    async with trio.open_nursery() as nursery:
        for n in range(60):
            nursery.start_soon(give_up, n * 0.0007)

call("echo")
before = link._connections[peer]
thread.run(storm)
blob = bytes(300_000)
finish(whole=[call("echo", blob=blob, max_blob=1 << 20).blob == blob for _ in range(5)],
       same=link._connections[peer] is before)
"""
    )
    assert found["whole"] == [True] * 5
    assert found["same"], "no write was cut in the middle, so the connection lived on"


def test_a_peer_that_dies_is_noticed_at_once_and_found_again(
    odd: Callable[[str], dict[str, Any]],
) -> None:
    found = odd(
        """
call("echo")
tell(do="kill")
gone = [error("echo"), error("echo")]
tell(do="start")
back = call("echo", {"n": 1}).body["got"]
finish(gone=gone, back=back)
"""
    )
    assert [code for code, *_ in found["gone"]] == ["unreachable", "unreachable"]
    assert "connection refused" in found["gone"][1][1]
    assert all(seconds < 10 for *_, seconds in found["gone"])
    assert found["back"] == {"n": 1}


def test_addresses_that_cannot_be_dialled_are_told_apart(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
nobody = "12D3KooWGS8hdDYPnTSAQVY3h8p1L4gcMG3FveaNhv9uWaaUewhn"
port = peers[0].split("/")[4]
def say(*addresses):
    link.learn(nobody, addresses)
    begun = time.monotonic()
    try:
        thread.run(functools.partial(link.call, nobody, "echo", {}, timeout=5))
    except RpcError as failure:
        return [str(failure), time.monotonic() - begun]

said = [say("/ip4/127.0.0.1/tcp/1"), say(f"/ip4/127.0.0.1/tcp/{port}"), say("/ip4/127.0.0.1/udp/1/quic-v1"),
        say("/dns4/no-such-host.invalid/tcp/4001"), say("/ip4/127.0.0.1/tcp/1", f"/ip4/127.0.0.1/tcp/{port}")]
link.learn(peer, ["/ip4/127.0.0.1/tcp/1", *peers])
finish(said=said, second=call("echo", {"n": 2}).body["got"])
"""
    )
    refused, stranger, quic, unknown, both = (text for text, _ in found["said"])
    assert "connection refused" in refused
    assert "another peer lives there" in stranger
    assert "no TCP address" in quic and "quic-v1" in quic
    assert unknown.startswith(("unreachable", "timeout"))
    assert "connection refused" in both and "another peer lives there" in both
    assert all(seconds < 10 for _, seconds in found["said"])
    assert found["second"] == {"n": 2}


def test_closing_leaves_neither_threads_nor_sockets(odd: Callable[[str], dict[str, Any]]) -> None:
    found = odd(
        """
import psutil
from concurrent.futures import ThreadPoolExecutor
call("echo")
pool = ThreadPoolExecutor(1)
waiting = pool.submit(call, "sleep", {"seconds": 60}, timeout=60)
time.sleep(0.5)
begun = time.monotonic()
thread.run(link.close)
thread.close()
seconds = time.monotonic() - begun
ended = type(waiting.exception(5)).__name__
pool.shutdown()
try:
    call("echo")
except ClientError as failure:
    after = str(failure)
left = [str(held) for held in psutil.Process().net_connections() if held.status != "NONE"]
result(seconds=seconds, ended=ended, after=after, left=left, threads=threading.active_count())
"""
    )
    assert found["seconds"] < 2
    assert found["ended"] in ("ClientError", "RpcError")
    assert "closed" in found["after"]
    assert found["left"] == [] and found["threads"] == 1


def test_a_peer_that_has_only_a_relayed_address_is_asked_through_its_relay(
    odd: Callable[[str], dict[str, Any]],
) -> None:
    found = odd(
        """
from blockswarm.dht.identity import Identity

def through(method, addresses, **more):
    hidden = Identity.ephemeral().peer_id
    link.learn(hidden, addresses)
    try:
        reply = thread.run(functools.partial(link.call, hidden, method, {"a": 1}, run=bytes(32), timeout=20, **more))
        return [reply.body["to"] == hidden, reply.body["asked"], reply.body["body"], len(reply.blob)]
    except RpcError as failure:
        return [failure.code, failure.text, failure.detail]

circuit = [f"{peers[0]}/p2p-circuit"]
dead = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.ephemeral().peer_id}/p2p-circuit"
finish(answered=through("logprobs", circuit, blob=bytes(70_000), max_blob=70_000),
       refused=through("sweep", circuit), unknown=through("states", circuit),
       second=through("logprobs", [dead, *circuit], blob=b"z", max_blob=1),
       none=through("logprobs", [dead]))
"""
    )
    assert found["answered"] == [True, "logprobs", {"a": 1}, 70_000]
    assert found["refused"] == ["busy", "says the holder", {"retry_after": 0.5}]
    assert found["unknown"][0] == "unreachable" and "never heard of it" in found["unknown"][1]
    assert found["second"] == [True, "logprobs", {"a": 1}, 1]
    assert found["none"][0] == "unreachable" and "no relay passes" in found["none"][1]
