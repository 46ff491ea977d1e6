"""Multiaddrs: what can be used, and a reason for what cannot."""

from __future__ import annotations

import socket

import pytest

from blockswarm.dht import addresses
from blockswarm.dht.errors import AddressError, PortError
from tests.dht.world import NOBODY as PEER

RELAY = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.mark.parametrize(
    ("text", "host", "transport", "port"),
    [
        ("/ip4/192.0.2.1/tcp/4001", "192.0.2.1", "tcp", 4001),
        ("/ip6/2001:db8::1/tcp/4001", "2001:db8::1", "tcp", 4001),
        ("/ip4/192.0.2.1/udp/4001/quic-v1", "192.0.2.1", "quic-v1", 4001),
        ("/dns4/swarm.example.org/tcp/443/ws", "swarm.example.org", "ws", 443),
        ("/dns/localhost/tcp/1", "localhost", "tcp", 1),
    ],
)
def test_supported_addresses_are_understood(text, host, transport, port):
    for full, peer_id in ((text, None), (f"{text}/p2p/{PEER}", PEER)):
        address = addresses.parse(full)
        assert (address.host, address.transport, address.port) == (host, transport, port)
        assert (address.peer_id, address.bare, address.relay_id) == (peer_id, text, None)
    assert addresses.split_peer(f"{text}/p2p/{PEER}") == (text, PEER)


def test_a_relayed_address_names_relay_and_peer():
    text = f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"
    address = addresses.parse(text)
    assert (address.relay_id, address.peer_id) == (RELAY, PEER)
    assert address.bare == f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY}/p2p-circuit"
    assert addresses.is_relayed(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("192.0.2.1:4001", "starts with '/'"),
        ("/ip4/192.0.2.1", "after the host comes"),
        ("/ip4/192.0.2.1/tcp", "is not a port"),
        ("/ip4/192.0.2.1/tcp/http", "is not a port"),
        ("/ip4/192.0.2.1/tcp/65536", "is not a port"),
        ("/ip4/192.0.2.1/tcp/-1", "is not a port"),
        ("/ip4/192.0.2.1/tcp/٣", "is not a port"),
        ("/ip4/192.0.2.256/tcp/1", "not an IPv4 address"),
        ("/ip6/192.0.2.1/tcp/1", "not an IPv6 address"),
        ("/ip6/fe80::1%eth0/tcp/1", "not an IPv6 address"),
        ("/dns4/-bad-/tcp/1", "not a DNS name"),
        ("/ip4/192.0.2.1/tcp/1/", "empty part"),
        ("/ip4//tcp/1", "empty part"),
        ("/ip4/192.0.2.1/udp/1", "comes /quic-v1"),
        ("/ip4/192.0.2.1/udp/1/quic", "write /quic-v1"),
        ("/ip4/192.0.2.1/udp/1/quic-v1/webtransport", "/webtransport is not supported"),
        ("/dns4/example.org/tcp/1/wss", "/wss is not supported"),
        ("/dns4/example.org/tcp/1/tls/ws", "/tls is not supported"),
        ("/unix/tmp/socket", "/unix is not supported"),
        ("/onion3/abc/tcp/1", "it starts with /onion3"),
        ("/ip4/192.0.2.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "peer id of an Ed25519 key"),
        ("/ip4/192.0.2.1/tcp/1/p2p", "peer id of an Ed25519 key"),
        (f"/ip4/192.0.2.1/tcp/1/ipfs/{PEER}", "write /p2p/PEER"),
        (f"/ip4/192.0.2.1/tcp/1/p2p-circuit/p2p/{PEER}", "needs the relay's"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}/http", "/http is not supported"),
        ("/ip4/192.0.2.1/tcp/1" + "/x" * 200, "at most 256"),
    ],
)
def test_what_cannot_be_used_says_why(text, reason):
    with pytest.raises(AddressError, match=reason.replace("'", ".").replace("(", r"\(")):
        addresses.parse_multiaddr(text)


@pytest.mark.parametrize(
    "text", ["/\x1b[2J/x", "/ip4/192.0.2.1/tcp/1/\x1b[2J", f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}/a\nb"]
)
def test_what_a_stranger_calls_an_address_reaches_no_terminal(text):
    with pytest.raises(AddressError) as caught:
        addresses.parse(text)
    assert str(caught.value).isprintable()


def test_an_address_without_a_peer_is_not_enough_to_join_through():
    with pytest.raises(AddressError, match="must end in /p2p/PEER"):
        addresses.parse_multiaddr("/ip4/192.0.2.1/tcp/1", need_peer=True)


def test_a_hostile_address_cannot_write_to_the_terminal():
    with pytest.raises(AddressError) as caught:
        addresses.parse("/ip4/\x1b[2J/tcp/1")
    assert "\x1b" not in str(caught.value)


def test_listen_addresses_name_the_flag():
    assert addresses.check_listen([" /ip4/0.0.0.0/tcp/4001 "]) == ["/ip4/0.0.0.0/tcp/4001"]
    for bad in ("/ip4/0.0.0.0/udp/1/quic", "/dns4/example.org/tcp/1", f"/ip4/0.0.0.0/tcp/1/p2p/{PEER}"):
        with pytest.raises(AddressError, match=r"^listen bad multiaddr"):
            addresses.check_listen([bad])


def test_announced_port_zero_is_refused_with_the_name_of_the_flag():
    with pytest.raises(AddressError, match=r"^announce .*port 0"):
        addresses.check_announce(["/ip4/192.0.2.1/tcp/0"], PEER)


def test_announced_addresses_are_ones_own():
    assert addresses.check_announce([f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}"], PEER) == ["/ip4/192.0.2.1/tcp/1"]
    with pytest.raises(AddressError, match=r"^announce .*names another peer"):
        addresses.check_announce([f"/ip4/192.0.2.1/tcp/1/p2p/{RELAY}"], PEER)


def test_a_node_that_announces_only_loopback_is_warned():
    assert "loopback" in addresses.reachability_warning(["/ip4/127.0.0.1/tcp/1"])
    assert "private" in addresses.reachability_warning(["/ip4/172.17.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1"])
    assert "announce=" in addresses.reachability_warning(["/ip4/192.168.1.2/tcp/1"])
    assert addresses.reachability_warning(["/ip4/8.8.8.8/tcp/1", "/ip4/127.0.0.1/tcp/1"]) is None
    assert addresses.reachability_warning(["/dns4/example.org/tcp/1"]) is None
    assert addresses.reachability_warning([f"/ip4/10.0.0.1/tcp/1/p2p/{RELAY}/p2p-circuit"]) is None


def test_the_best_addresses_come_first_and_loopback_only_when_alone():
    found = ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/8.8.8.8/tcp/1", "/ip4/1.1.1.1/udp/1/webrtc-direct"]
    best = addresses.best(found, PEER, 8)
    assert best == [f"/ip4/8.8.8.8/tcp/1/p2p/{PEER}", f"/ip4/192.168.1.2/tcp/1/p2p/{PEER}"]
    assert addresses.best(found[:1], PEER, 8) == [f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"]


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        # As p2pd does it: the option that lets two programs share a port in silence.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_named_with_the_flag(taken_port, host):
    with pytest.raises(PortError, match=f"listen .*port {taken_port} is already in use"):
        addresses.check_port_free([f"/ip4/{host}/tcp/{taken_port}"])


def test_a_udp_port_in_use_is_noticed():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(PortError, match=f"port {port} is already in use"):
            addresses.check_port_free([f"/ip4/127.0.0.1/udp/{port}/quic-v1"])
        addresses.check_port_free([f"/ip4/127.0.0.1/tcp/{port}"])


def test_a_port_whose_connections_are_still_closing_is_free():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    server, _ = listener.accept()
    server.close()  # closes first: its half of the connection lingers in TIME_WAIT
    client.close()
    listener.close()
    with socket.socket() as plain, pytest.raises(OSError):
        plain.bind(("127.0.0.1", port))
    addresses.check_port_free([f"/ip4/127.0.0.1/tcp/{port}", "/ip4/127.0.0.1/tcp/0"])


def test_an_address_of_another_machine_cannot_be_listened_on():
    with pytest.raises(AddressError, match=r"this machine has no address 192\.0\.2\.1"):
        addresses.check_port_free(["/ip4/192.0.2.1/tcp/4001"])
