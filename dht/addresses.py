"""Multiaddrs: which ones this software can use, and why another one cannot be used.

p2pd drops an address it cannot use without a word, and lets two daemons share one port (SO_REUSEPORT), so both are
checked here before it starts. Supported: ``/ip4 /ip6 /dns /dns4 /dns6`` with ``/tcp/PORT``, ``/tcp/PORT/ws`` or
``/udp/PORT/quic-v1``, then ``/p2p/PEER``, and ``…/p2p/RELAY/p2p-circuit/p2p/PEER``.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockswarm.dht.errors import AddressError, PortError
from blockswarm.dht.frames import one_line
from blockswarm.dht.peer_id import is_peer_id
from blockswarm.naming import option

MAX_LENGTH = 256
"""Characters; a relayed address with two peer ids and a long DNS name fits."""

_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
_HINTS = {
    "quic": "/quic is the old form nobody listens on; write /quic-v1",
    "wss": "/wss is not supported; use /ws, /tcp or /quic-v1",
    "tls": "/tls is not supported; use /ws, /tcp or /quic-v1",
    "webtransport": "/webtransport is not supported; use /quic-v1 or /tcp",
    "webrtc": "/webrtc is not supported; use /quic-v1 or /tcp",
    "webrtc-direct": "/webrtc-direct is not supported; use /quic-v1 or /tcp",
    "dnsaddr": "/dnsaddr is not supported; write the address it stands for",
    "unix": "/unix is not supported; use /ip4/…/tcp/PORT",
}
_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?\Z"
)


@dataclass(frozen=True)
class Address:
    """One multiaddr taken apart."""

    text: str
    """The address as given."""
    host: str
    """IP address or DNS name."""
    is_ip: bool
    transport: str
    """``tcp``, ``ws`` or ``quic-v1``."""
    port: int
    peer_id: str | None
    """Whose address it is: the last ``/p2p/`` part; None when there is none."""
    relay_id: str | None
    """The relay it goes through, None for a direct address."""

    @property
    def bare(self) -> str:
        """The address without its final ``/p2p/PEER``."""
        return self.text.removesuffix(f"/p2p/{self.peer_id}") if self.peer_id else self.text


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Address:
    """Take ``text`` apart.

    Raises
    ------
    AddressError
        With the reason, when it is malformed or of an unsupported kind.
    """
    if len(text) > MAX_LENGTH:
        raise AddressError(f"address of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    if not text.startswith("/"):
        raise _bad(text, "an address starts with '/', as in /ip4/1.2.3.4/tcp/4001/p2p/12D3KooW…")
    parts = text[1:].split("/")
    if "" in parts:
        raise _bad(text, "it has an empty part ('//' or a '/' at the end)")
    kind, host = parts[0], parts[1] if len(parts) > 1 else ""
    if kind not in _HOSTS:
        raise _bad(text, _HINTS.get(kind, f"it starts with /{kind}; supported are /ip4 /ip6 /dns /dns4 /dns6"))
    _check_host(text, kind, host)
    rest = parts[2:]
    transport, port, rest = _transport(text, rest)
    peer_id, rest = _peer(text, rest)
    relay_id = None
    if rest and rest[0] == "p2p-circuit":
        if peer_id is None:
            raise _bad(text, "/p2p-circuit needs the relay's /p2p/PEER before it")
        relay_id = peer_id
        peer_id, rest = _peer(text, rest[1:])
    if rest:
        raise _bad(text, _HINTS.get(rest[0], f"/{rest[0]} is not supported there"))
    return Address(text, host, kind.startswith("ip"), transport, port, peer_id, relay_id)


def parse_multiaddr(text: str, *, need_peer: bool = False) -> str:
    """``text`` itself (stripped) if it is a usable multiaddr, with ``/p2p/PEER`` at its end if ``need_peer``.

    Raises
    ------
    AddressError
        With the reason.
    """
    address = parse(text.strip())
    if need_peer and address.peer_id is None:
        raise _bad(address.text, "it must end in /p2p/PEER, the id of the peer that answers there")
    return address.text


def split_peer(addr: str) -> tuple[str, str]:
    """``(address without the final /p2p/PEER, peer id)``.

    Raises
    ------
    AddressError
        If ``addr`` is malformed or names no peer.
    """
    address = parse(parse_multiaddr(addr, need_peer=True))
    assert address.peer_id is not None
    return address.bare, address.peer_id


def is_loopback(addr: str) -> bool:
    """Whether only this machine can reach ``addr``."""
    ip = _ip(addr)
    return parse(addr).host == "localhost" if ip is None else ip.is_loopback


def is_private(addr: str) -> bool:
    """Whether ``addr`` cannot be reached from the internet (loopback, home and container networks, link-local)."""
    ip = _ip(addr)
    return parse(addr).host == "localhost" if ip is None else not ip.is_global


def is_relayed(addr: str) -> bool:
    """Whether ``addr`` goes through a relay."""
    return parse(addr).relay_id is not None


def reachability_warning(addrs: Sequence[str]) -> str | None:
    """The line to show when nobody else could reach a peer that announces ``addrs``; None when somebody can."""
    direct = [addr for addr in addrs if not is_relayed(addr)]
    if len(direct) < len(addrs) or not addrs:
        return None
    if all(is_loopback(addr) for addr in direct):
        where, whom = "loopback", "on this machine"
    elif all(is_private(addr) for addr in direct):
        where, whom = "private", "in this network"
    else:
        return None
    return (
        f"all announced addresses are {where} ({', '.join(direct[:3])}): only peers {whom} can reach this one; "
        f"to be reached from elsewhere give {option('announce', '/ip4/PUBLIC-ADDRESS/tcp/PORT')}"
    )


def best(addrs: Iterable[str], peer_id: str, most: int) -> list[str]:
    """Full multiaddrs of ``peer_id`` made of ``addrs`` (without ``/p2p``): the usable ones, public ones first.

    To others, a loopback address is their own machine: it only counts when there is nothing else.
    """
    usable = []
    for addr in addrs:
        try:
            usable.append(parse(f"{addr}/p2p/{peer_id}").text)
        except AddressError:
            continue
    elsewhere = [addr for addr in dict.fromkeys(usable) if not is_loopback(addr)]
    return sorted(elsewhere or usable, key=lambda addr: (is_relayed(addr), is_private(addr)))[:most]


def check_listen(addrs: Iterable[str]) -> list[str]:
    """Addresses to listen on, checked.

    Raises
    ------
    AddressError
        Naming ``listen``, the address and the reason.
    """
    checked = []
    for addr in addrs:
        try:
            address = parse(addr.strip())
        except AddressError as error:
            raise AddressError(f"{option('listen')} {error}") from None
        if not address.is_ip or address.peer_id is not None or address.relay_id is not None:
            reason = "give an IP address and a port only: /ip4/0.0.0.0/tcp/4001"
            raise AddressError(f"{option('listen')} {_bad(addr, reason)}")
        checked.append(address.text)
    return checked


def check_announce(addrs: Iterable[str], peer_id: str) -> list[str]:
    """Addresses to tell others, checked, without ``/p2p``.

    Raises
    ------
    AddressError
        Naming ``announce``, the address and the reason.
    """
    checked = []
    for addr in addrs:
        try:
            address = parse(addr.strip())
        except AddressError as error:
            raise AddressError(f"{option('announce')} {error}") from None
        if address.port == 0:
            reason = "port 0 is no address; give the port others can dial"
            raise AddressError(f"{option('announce')} {_bad(addr, reason)}")
        if address.peer_id not in (None, peer_id):
            reason = f"it names another peer; this one is {peer_id}"
            raise AddressError(f"{option('announce')} {_bad(addr, reason)}")
        checked.append(address.bare)
    return checked


def check_port_free(addrs: Iterable[str]) -> None:
    """Make sure that no other program listens on the ports of ``addrs`` (port 0 is always free).

    Raises
    ------
    AddressError, PortError
        Naming ``listen``, the port and what to do.
    """
    for addr in addrs:
        address = parse(addr)
        if address.port == 0:
            continue
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        udp = address.transport == "quic-v1"
        with socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not udp:
                # On Linux this lets us pass connections of a former owner that are still closing (TIME_WAIT), never a
                # listener: a peer restarted at once must get its port back. SO_REUSEPORT would hide a listener.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, address.port))
                if not udp:
                    probe.listen(1)
            except OSError as error:
                raise _not_bound(address, error) from None


def _not_bound(address: Address, error: OSError) -> AddressError | PortError:
    where = f"{option('listen')} {address.text}"
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressError(f"{where}: this machine has no address {address.host}")
    if error.errno == errno.EADDRINUSE:
        return PortError(f"{where}: port {address.port} is already in use; stop that program or choose another port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortError(f"{where}: no permission for port {address.port}; choose a port above 1023")
    return PortError(f"{where}: {error.strerror}")


def _bad(text: str, why: str) -> AddressError:
    return AddressError(f"bad multiaddr {text!r}: {one_line(why)}")


def _check_host(text: str, kind: str, host: str) -> None:
    if not kind.startswith("ip"):
        if not _DNS_NAME.match(host):
            raise _bad(text, f"{host!r} is not a DNS name")
        return
    try:
        if kind == "ip4":
            ipaddress.IPv4Address(host)
        elif "%" in host:
            raise ValueError
        else:
            ipaddress.IPv6Address(host)
    except ValueError:
        raise _bad(text, f"{host!r} is not an {'IPv4' if kind == 'ip4' else 'IPv6'} address") from None


def _transport(text: str, rest: list[str]) -> tuple[str, int, list[str]]:
    if not rest or rest[0] not in ("tcp", "udp"):
        raise _bad(text, _HINTS.get(rest[0] if rest else "", "after the host comes /tcp/PORT or /udp/PORT/quic-v1"))
    port = rest[1] if len(rest) > 1 else ""
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise _bad(text, f"{port!r} is not a port (0 to 65535)")
    after = rest[2] if len(rest) > 2 else ""
    if rest[0] == "udp":
        if after != "quic-v1":
            raise _bad(text, _HINTS.get(after, "after /udp/PORT comes /quic-v1"))
        return "quic-v1", int(port), rest[3:]
    if after == "ws":
        return "ws", int(port), rest[3:]
    return "tcp", int(port), rest[2:]


def _peer(text: str, rest: list[str]) -> tuple[str | None, list[str]]:
    if not rest or rest[0] not in ("p2p", "ipfs"):
        return None, rest
    if rest[0] == "ipfs":
        raise _bad(text, "/ipfs/PEER is the old form; write /p2p/PEER")
    if len(rest) < 2 or not is_peer_id(rest[1]):
        raise _bad(
            text, f"{(rest[1] if len(rest) > 1 else '')[:60]!r} is not the peer id of an Ed25519 key (12D3KooW…)"
        )
    return rest[1], rest[2:]


def _ip(addr: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    address = parse(addr)
    return ipaddress.ip_address(address.host) if address.is_ip else None
