"""Hosts and the lines between them, from outside: built, changed, counted, and taken down without a trace."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import psutil

from benchmarks.hosts import kernel
from benchmarks.hosts.channel import MAX_HOSTS, PATIENCE, Channel
from benchmarks.hosts.errors import HostsError
from benchmarks.hosts.host import Host
from benchmarks.hosts.link import FREE, Link
from benchmarks.hosts.network import Lateness, Traffic

LEAST_MTU = 1280
"""What IPv6 requires."""
MAX_MTU = 65_535
MTU = 1500
"""The internet's: loss and queues then act on packets of the size they have out there."""


class World:
    """Hosts joined by lines. A context manager: leaving it kills every process on the hosts and removes them.

    Made by `build`. A host is named by its number or by itself. What is changed is in force when the call returns.

    Attributes
    ----------
    hosts : list of Host
    forwarder : psutil.Process
        The process that carries the packets; its processor time is the price of the bench.
    """

    def __init__(self, channel: Channel, link: Link, mtu: int) -> None:
        self.hosts = []
        for number, (addresses, namespace) in enumerate(zip(channel.addresses, channel.namespaces, strict=True)):
            own = [str(ipaddress.ip_interface(address).ip) for address in addresses]
            self.hosts.append(Host(number, own[0], own[1] if len(own) > 1 else None, namespace))
        self.forwarder = psutil.Process(channel.pid)
        self._channel = channel
        self._mtu = mtu
        self._links = dict.fromkeys(itertools.permutations(range(len(self.hosts)), 2), link)
        self._closed = False

    @classmethod
    def build(
        cls,
        hosts: int = 2,
        *,
        link: Link = FREE,
        uplink: Link = FREE,
        downlink: Link = FREE,
        seed: int = 0,
        mtu: int = MTU,
        network: str = "10.77.0.0/16",
        network6: str = "fd77::/64",
        congestion: str | None = None,
    ) -> Self:
        """Build a world; it needs some 0.2 s.

        A packet passes the uplink of its sender, the line between the two hosts and the downlink of its receiver.

        Parameters
        ----------
        hosts : int
            How many, at most 64.
        link : Link
            The line between any two hosts, in each direction; `set_link` changes single ones.
        uplink, downlink : Link
            What attaches each host, shared by all it sends or receives; free by default.
        seed : int
            Of the losses: which packets of a line are lost, counted from its first, depends on this alone.
        mtu : int
            Largest IP packet, bytes. Larger ones cost less processor time for each byte, but a loss then loses more.
        network, network6 : str
            Where the hosts' addresses lie; host ``i`` has the ``i + 1``-th. Only the hosts see them, so they may be
            public ones: some software treats peers with private addresses in another way.
        congestion : str, optional
            TCP congestion control on the hosts (``cubic``, ``bbr``, …); default is this machine's.

        Raises
        ------
        HostsError
            When this machine does not allow it, or a parameter makes no sense.
        """
        if (reason := kernel.why_not()) is not None:
            raise HostsError(reason)
        plan = {
            "addresses": _addresses(hosts, network, network6),
            "mtu": mtu,
            "seed": seed,
            "congestion": congestion,
            "link": link.to_dict(),
            "uplink": uplink.to_dict(),
            "downlink": downlink.to_dict(),
        }
        if not LEAST_MTU <= mtu <= MAX_MTU:
            raise HostsError(f"mtu is {mtu}: it must lie between {LEAST_MTU} and {MAX_MTU}")
        for each in (link, uplink, downlink):
            _check_queue(each, mtu)
        return cls(Channel(plan), link, mtu)

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def link(self, a: int | Host, b: int | Host) -> Link:
        """What the line from ``a`` to ``b`` is like now, cut or not."""
        return self._links[self._pair(a, b)]

    def set_link(self, a: int | Host, b: int | Host, link: Link, *, back: Link | None = None) -> None:
        """Change the line between two hosts: ``link`` from ``a`` to ``b``, ``back`` in the other direction.

        ``back`` is the same as ``link`` by default. Packets under way keep their times.
        """
        there = self._pair(a, b)
        back = link if back is None else back
        for (source, target), each in ((there, link), (there[::-1], back)):
            _check_queue(each, self._mtu)
            self._channel.order({"do": "path", "from": source, "to": target, "link": each.to_dict()})
            self._links[source, target] = each

    def set_uplink(self, host: int | Host, link: Link) -> None:
        """Change what limits everything a host sends."""
        self._set_access("uplink", host, link)

    def set_downlink(self, host: int | Host, link: Link) -> None:
        """Change what limits everything a host receives."""
        self._set_access("downlink", host, link)

    def cut(self, a: int | Host, b: int | Host, *, one_way: bool = False) -> None:
        """Drop everything between two hosts without a word, what is under way too.

        With ``one_way`` only what goes from ``a`` to ``b``.
        """
        there = self._pair(a, b)
        self._sever([there] if one_way else [there, there[::-1]], True)

    def cut_off(self, host: int | Host) -> None:
        """Cut a host off from all others."""
        self._sever(self._pairs_with(host), True)

    def heal(self, a: int | Host | None = None, b: int | Host | None = None) -> None:
        """Undo cuts: all of them, those around one host, or those between two."""
        if a is None:
            self._sever(list(self._links), False)
        elif b is None:
            self._sever(self._pairs_with(a), False)
        else:
            there = self._pair(a, b)
            self._sever([there, there[::-1]], False)

    def traffic(self) -> dict[tuple[int, int], Traffic]:
        """(source, target) → what happened to the packets between them since the world was built."""
        rows = self._channel.order({"do": "traffic"})["traffic"]
        return {(source, target): Traffic(*counts) for source, target, *counts in rows}

    def sent_by(self, host: int | Host) -> Traffic:
        """What happened to all the packets a host sent."""
        number = self._number(host)
        return sum((each for (source, _), each in self.traffic().items() if source == number), Traffic())

    def lateness(self) -> Lateness:
        """How well the bench kept its own times so far: look at it before you believe a figure from a busy machine."""
        return Lateness(**self._channel.order({"do": "lateness"})["lateness"])

    def strays(self) -> int:
        """Packets to addresses that no host has, dropped so far."""
        return int(self._channel.order({"do": "lateness"})["strays"])

    def close(self) -> None:
        """Kill every process on the hosts, then remove the hosts. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            for host in self.hosts:
                host.kill_started(PATIENCE)
            self._empty()
        finally:
            self._channel.end()
            for host in self.hosts:
                host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _empty(self) -> None:
        """Kill whatever lives on the hosts; nobody but this world can be there."""
        namespaces = {host.namespace_id for host in self.hosts}
        deadline = time.monotonic() + PATIENCE
        while left := kernel.processes_in(namespaces):
            if time.monotonic() > deadline:
                raise HostsError(f"process {left[0].pid} on a host cannot be killed")
            for process in left:
                with contextlib.suppress(psutil.Error):  # it ended meanwhile
                    process.kill()
            psutil.wait_procs(left, timeout=0.1)

    def _set_access(self, which: str, host: int | Host, link: Link) -> None:
        _check_queue(link, self._mtu)
        self._channel.order({"do": which, "host": self._number(host), "link": link.to_dict()})

    def _sever(self, pairs: Iterable[tuple[int, int]], severed: bool) -> None:
        self._channel.order({"do": "sever", "pairs": list(pairs), "severed": severed})

    def _number(self, host: int | Host) -> int:
        number = host if isinstance(host, int) else host.number
        if not 0 <= number < len(self.hosts):
            raise HostsError(f"there is no host {number}: the world has {len(self.hosts)}, from 0")
        return number

    def _pair(self, a: int | Host, b: int | Host) -> tuple[int, int]:
        pair = self._number(a), self._number(b)
        if pair[0] == pair[1]:
            raise HostsError(f"host {pair[0]} has no line to itself; what it sends to itself stays on its loopback")
        return pair

    def _pairs_with(self, host: int | Host) -> list[tuple[int, int]]:
        number = self._number(host)
        return [pair for pair in self._links if number in pair]


def _addresses(hosts: int, network: str, network6: str) -> list[list[str]]:
    """For every host its addresses with prefix lengths."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise HostsError(f"a world has 1 to {MAX_HOSTS} hosts, not {hosts}")
    try:
        ranges: list[ipaddress.IPv4Network | ipaddress.IPv6Network]
        ranges = [ipaddress.IPv4Network(network), ipaddress.IPv6Network(network6)]
    except ValueError as error:
        raise HostsError(f"not a network: {error}") from None
    for each in ranges:
        if each.num_addresses < hosts + 2:
            raise HostsError(f"{each} is too small for {hosts} hosts")
    return [[f"{each[number + 1]}/{each.prefixlen}" for each in ranges] for number in range(hosts)]


def _check_queue(link: Link, mtu: int) -> None:
    if link.queue_limit < mtu:
        raise HostsError(f"queue_bytes is {link.queue_bytes}, less than one packet of {mtu} bytes: nothing would pass")
