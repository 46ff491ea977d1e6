"""A host on the network: starting alone, finding others sooner or later, and ending in time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht import keeper
from blockswarm.dht.address_book import AddressBook
from blockswarm.dht.errors import AddressError, HostError, IdentityError, PortError, RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import KnownPeers
from tests.dht.world import LOOPBACK, NOBODY, eventually, knows


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def impatient(monkeypatch):
    """Shorter pauses between attempts, so that tests need not wait for minutes."""
    monkeypatch.setattr(keeper, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(keeper, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(keeper, "LONGEST_PAUSE", 0.5)
    monkeypatch.setattr(keeper, "STRANGERS_SECONDS", 0.3)


# -- addresses and ports --------------------------------------------------------------------------------------------


async def test_a_host_says_who_and_where_it_is(start_host):
    host = await start_host()
    (addr,) = host.addresses()
    assert addr.startswith("/ip4/127.0.0.1/tcp/") and addr.endswith(f"/p2p/{host.peer_id}")
    assert not host.relayed
    assert "all announced addresses are loopback" in host.warnings[0]


async def test_an_explicit_announce_wins(start_host):
    host = await start_host(announce=["/ip4/198.51.100.7/tcp/4001", "/dns4/swarm.example.org/tcp/4001"])
    assert host.addresses() == [
        f"/dns4/swarm.example.org/tcp/4001/p2p/{host.peer_id}",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{host.peer_id}",
    ]
    assert host.warnings == []


@pytest.mark.parametrize("kind", ["/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0/ws", "/ip6/::1/tcp/0"])
async def test_other_transports_listen_and_are_reached(start_host, kind):
    first = await start_host(listen=[kind])
    second = await start_host(initial_peers=first.addresses())
    reply = await second.call(first.peer_id, "hello", {}, timeout=20)
    assert reply.body["peer_id"] == first.peer_id


async def test_a_port_already_taken_by_another_node_is_detected_and_the_first_goes_on(start_host):
    first = await start_host()
    port = first.addresses()[0].split("/")[4]
    with pytest.raises(PortError, match=rf"listen /ip4/127\.0\.0\.1/tcp/{port}: port {port} is already in use"):
        await start_host(listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    other = await start_host(initial_peers=first.addresses())
    await other.call(first.peer_id, "hello", {}, timeout=20)


async def test_a_restarted_peer_gets_its_port_back_at_once(start_host):
    port = free_port()
    first = await start_host(listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    other = await start_host(initial_peers=first.addresses())
    await other.call(first.peer_id, "hello", {}, timeout=20)
    await first.stop()
    again = await start_host(listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    assert f"/tcp/{port}/" in again.addresses()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"announce": ["/ip4/198.51.100.7/tcp/0"]}, "announce .*port 0"),
        ({"listen": ["/ip4/0.0.0.0/udp/1/quic"]}, "listen .*quic-v1"),
        ({"initial_peers": ["/ip4/198.51.100.7/tcp/1"]}, "must end in /p2p/PEER"),
    ],
)
async def test_a_bad_address_is_refused_before_anything_starts(start_host, options, message):
    with pytest.raises(AddressError, match=message):
        await start_host(**options)


# -- finding others -------------------------------------------------------------------------------------------------


async def test_all_bootstrap_nodes_down_is_no_reason_to_end_and_each_address_is_reported_with_its_reason(
    start_host, caplog
):
    other = await start_host()
    port = free_port()
    somebody_else = other.addresses()[0].replace(other.peer_id, NOBODY)
    dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"
    unknown = f"/dns4/nobody.invalid/tcp/1/p2p/{Identity.ephemeral().peer_id}"
    host = await start_host(initial_peers=[dead, unknown])
    await eventually(lambda: f"initial peer {dead}: refused; trying again" in caplog.text)
    await eventually(lambda: "DNS name nobody.invalid unknown" in caplog.text)
    with pytest.raises(HostError, match=rf"wrong peer id \({other.peer_id} answers there\)"):
        await host.connect(somebody_else)
    # It works on: others can still come to it.
    await other.connect(host.addresses()[0])
    assert (await host.call(other.peer_id, "hello", {}, timeout=10)).body["peer_id"] == other.peer_id


async def test_a_bootstrap_node_that_comes_up_later_is_found(start_host, impatient, caplog):
    identity, port = Identity.ephemeral(), free_port()
    addr = f"/ip4/127.0.0.1/tcp/{port}/p2p/{identity.peer_id}"
    host = await start_host(initial_peers=[addr])
    await eventually(lambda: "refused" in caplog.text)
    # Well beyond the attempts after which libp2p itself would make a long pause.
    await asyncio.sleep(2.0)
    bootstrap = await start_host(identity, listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    start = time.monotonic()
    await eventually(lambda: knows(host, bootstrap) and knows(bootstrap, host))
    assert time.monotonic() - start < 10
    assert caplog.text.count("trying again") == 1, "a node that is down is one line, not one per attempt"


async def test_a_bootstrap_node_that_restarts_is_found_again(start_host, impatient):
    identity, port = Identity.ephemeral(), free_port()
    first = await start_host(identity, listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    host = await start_host(initial_peers=first.addresses())
    await eventually(lambda: knows(host, first))
    await first.stop()
    await eventually(lambda: not host.connected_peers())
    again = await start_host(identity, listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    await eventually(lambda: knows(again, host), within=30)
    reply = await host.call(again.peer_id, "hello", {}, timeout=10)
    assert reply.body["instance"] == again.instance != first.instance


async def test_cached_peers_are_an_entrance_when_the_bootstrap_nodes_are_gone(start_host, impatient, tmp_path):
    path = tmp_path / "known_peers.json"
    bootstrap, friend = await start_host(), await start_host()
    identity = Identity.ephemeral()
    host = await start_host(
        identity, initial_peers=[*bootstrap.addresses(), *friend.addresses()], known_peers=KnownPeers(path)
    )
    await eventually(lambda: len(KnownPeers(path).addrs()) == 2 or host._keeper._known.save())
    await host.stop()
    await bootstrap.stop()
    again = await start_host(identity, initial_peers=bootstrap.addresses(), known_peers=KnownPeers(path))
    await eventually(lambda: knows(again, friend))


async def test_peers_are_introduced_to_each_other_through_a_third(start_host, impatient):
    bootstrap = await start_host()
    one = await start_host(initial_peers=bootstrap.addresses())
    await eventually(lambda: knows(bootstrap, one))
    two = await start_host(initial_peers=bootstrap.addresses())
    await eventually(lambda: knows(two, one))
    # And it stays so without the bootstrap node.
    await bootstrap.stop()
    assert (await two.call(one.peer_id, "hello", {}, timeout=10)).body["peer_id"] == one.peer_id
    addrs = (await two.call(one.peer_id, "peers", {}, timeout=10)).body["addrs"]
    assert one.addresses()[0] in addrs


async def test_a_peer_learned_from_a_record_can_be_called(start_host):
    one, two = await start_host(), await start_host()
    with pytest.raises(RpcError, match=r"unreachable.*no known address"):
        await one.call(two.peer_id, "hello", {}, timeout=10)
    one.learn(two.peer_id, two.addresses())
    await one.call(two.peer_id, "hello", {}, timeout=10)
    await two.stop()
    with pytest.raises(RpcError, match="unreachable"):
        await one.call(two.peer_id, "hello", {}, timeout=10)
    assert isinstance(one.book, AddressBook) and one.book.addrs(two.peer_id)


# -- identity -------------------------------------------------------------------------------------------------------


async def test_the_same_identity_twice_the_second_refuses_and_the_first_is_not_disturbed(start_host, tmp_path):
    bootstrap = await start_host()
    secret = Identity.create(tmp_path / "one.key").to_bytes()
    (tmp_path / "copy.key").write_bytes(secret)
    (tmp_path / "copy.key").chmod(0o600)
    first = await start_host(Identity.load(tmp_path / "one.key"), initial_peers=bootstrap.addresses())
    watcher = await start_host(initial_peers=bootstrap.addresses())
    await eventually(lambda: knows(bootstrap, first) and knows(watcher, first))
    with pytest.raises(IdentityError, match=f"identity {first.peer_id} is already running elsewhere"):
        # The copy is as good as a copy on another machine: the lock on the file does not know it.
        await start_host(Identity.load(tmp_path / "copy.key"), initial_peers=bootstrap.addresses())
    for caller in (bootstrap, watcher):
        reply = await caller.call(first.peer_id, "hello", {}, timeout=10)
        assert reply.body["instance"] == first.instance
    with pytest.raises(IdentityError, match="already running on this machine"):
        await start_host(Identity.load(tmp_path / "one.key"), initial_peers=bootstrap.addresses())
    await first.stop()
    await eventually(lambda: first.peer_id not in bootstrap.connected_peers())
    await start_host(Identity.load(tmp_path / "copy.key"), initial_peers=bootstrap.addresses())


async def test_an_identity_whose_bootstrap_is_down_starts_without_delay(start_host, tmp_path):
    dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{NOBODY}"
    host = await start_host(Identity.create(tmp_path / "identity.key"), initial_peers=[dead])
    assert not host.daemon_died.done()


async def test_a_twin_found_later_ends_the_one_that_started_later(start_host):
    host = await start_host()
    host._keeper._check_twin({"live": True, "instance": "other", "started": host.started + 5})
    assert not host.daemon_died.done()
    host._keeper._check_twin({"live": True, "instance": host.instance, "started": host.started})
    host._keeper._check_twin({"live": True, "instance": 7, "started": "soon"})
    assert not host.daemon_died.done()
    host._keeper._check_twin({"live": True, "instance": "other", "started": host.started - 5})
    assert "already running elsewhere" in host.daemon_died.result()


async def test_whois_tells_only_of_peers_that_answer(start_host):
    bootstrap = await start_host()
    peer = await start_host(initial_peers=bootstrap.addresses())
    await eventually(lambda: knows(bootstrap, peer))
    asked = {"peer_id": bootstrap.peer_id}
    assert (await peer.call(bootstrap.peer_id, "whois", asked, timeout=10)).body["live"] is True
    assert (await peer.call(bootstrap.peer_id, "whois", {"peer_id": NOBODY}, timeout=10)).body == {"live": False}
    answer = (await peer.call(bootstrap.peer_id, "whois", {"peer_id": peer.peer_id}, timeout=10)).body
    assert answer == {"live": True, "instance": peer.instance, "started": peer.started}
    with pytest.raises(RpcError, match="bad-request"):
        await peer.call(bootstrap.peer_id, "whois", {"peer_id": "x"}, timeout=10)


# -- built-in methods, clock, end -----------------------------------------------------------------------------------


async def test_hello_tells_what_the_host_works_on(start_host):
    host = await start_host()
    host.describe = lambda: {"runs": [{"run_id": "demo-1", "digest": b"d" * 32}], "block": 2, "state": "TRAINING"}
    other = await start_host(initial_peers=host.addresses())
    body = (await other.call(host.peer_id, "hello", {}, timeout=10)).body
    assert body["protocol"] == 1 and body["software"].startswith("blockswarm ")
    assert (body["runs"], body["block"], body["state"], body["round"]) == (
        [{"run_id": "demo-1", "digest": b"d" * 32}],
        2,
        "TRAINING",
        None,
    )
    assert abs(body["time"] - SystemClock().now()) < 5


async def test_a_clock_off_by_minutes_is_measured(start_host):
    late = SystemClock()
    late.offset = -300.0
    others = [await start_host() for _ in range(2)]
    lying = SystemClock()
    lying.offset = 1e6
    others.append(await start_host(clock=lying))
    host = await start_host(clock=late, initial_peers=[addr for other in others for addr in other.addresses()])
    offset = await host.measure_offset([NOBODY, *(other.peer_id for other in others)], timeout=20)
    assert offset == pytest.approx(300.0, abs=2.0)
    assert await host.measure_offset([NOBODY], timeout=5) is None
    assert await host.measure_offset([]) is None


async def test_when_the_daemon_dies_the_host_says_so_and_calls_fail_at_once(start_host):
    host = await start_host()
    os.kill(host._daemon.pid, signal.SIGKILL)
    assert await asyncio.wait_for(host.daemon_died, 10) == "p2pd was killed by signal 9"
    start = time.monotonic()
    with pytest.raises(RpcError, match="unreachable"):
        await host.call(NOBODY, "hello", {}, timeout=30)
    assert time.monotonic() - start < 5


async def test_stop_is_quick_even_when_everything_hangs(start_host):
    host = await start_host()
    other = await start_host(initial_peers=host.addresses())
    await eventually(lambda: knows(host, other))

    async def stubborn(request):
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
                raise

    host.register("stubborn", stubborn, run_bound=False, timeout=60)
    call = asyncio.create_task(other.call(host.peer_id, "stubborn", {}, timeout=60))
    await eventually(lambda: host._server._calls.total())
    os.kill(host._daemon.pid, signal.SIGSTOP)
    start = time.monotonic()
    await host.stop()
    assert time.monotonic() - start < 3.5
    await host.stop()
    assert not host._daemon.folder.exists()
    with pytest.raises(RpcError, match=r"unreachable|broke"):
        await call


async def test_nothing_is_left_behind(start_host):
    before = asyncio.all_tasks()
    first = await start_host()
    second = await start_host(initial_peers=first.addresses())
    await eventually(lambda: knows(first, second))
    for host in (first, second):
        await host.stop()
    await eventually(lambda: asyncio.all_tasks() <= before, within=10)


async def test_a_start_that_is_cancelled_leaves_no_daemon(start_host, monkeypatch):
    import psutil

    def children() -> int:
        return sum("p2pd" in child.name() for child in psutil.Process().children())

    before = children()
    start = asyncio.create_task(start_host(listen=[LOOPBACK]))
    await eventually(lambda: children() > before or start.done())
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await eventually(lambda: children() == before)


def test_it_works_under_uvloop():
    import uvloop

    from tests.dht.world import two_hosts

    async def main():
        async with two_hosts() as (first, second):
            first.register("size", size, max_blob=1 << 22, run_bound=False)
            reply = await second.call(first.peer_id, "size", {}, blob=bytes(1 << 22), timeout=30)
            return reply.body["size"]

    async def size(request):
        from blockswarm.dht.rpc import Reply

        return Reply({"size": len(request.blob)})

    assert uvloop.run(main()) == 1 << 22
