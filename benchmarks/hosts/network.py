"""Which packet arrives where, and when: the lines between hosts without any device. Time is what callers say it is."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.hosts.link import Link

LATE_SECONDS = 0.001
"""A packet handed over this much after its time counts as late."""
ROUNDING_SECONDS = 1e-7
"""What sums of times are off by after months on the clock; a packet that just fits must not be dropped for it."""

MAX_UNDER_WAY = 512 << 20
"""Most bytes under way in a whole network: what a long line without a rate would hold has no other bound."""
PACKET_COST = 256
"""Bytes of memory that a packet under way takes besides its own, about."""


@dataclass(slots=True)
class Traffic:
    """What happened to the packets of one host to another; bytes are those of IP packets.

    Attributes
    ----------
    sent, sent_bytes : int
        Handed to the network.
    delivered, delivered_bytes : int
        Arrived. The rest is under way or was dropped:
    lost, overflowed, cut : int
        Packets dropped by chance, by a full queue (or a full bench, see `Lateness.overfull`), by a cut.
    """

    sent: int = 0
    sent_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    lost: int = 0
    overflowed: int = 0
    cut: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(slots=True)
class Lateness:
    """How well the bench kept its own times: a busy machine hands packets over after they were due.

    Attributes
    ----------
    packets : int
        Handed over so far.
    late : int
        Those more than a millisecond after their time.
    worst_ms : float
        The latest of them, ms.
    overrun : int
        Packets the kernel dropped because the forwarder did not fetch them in time; they count as not sent.
    overfull : int
        Packets dropped because `MAX_UNDER_WAY` bytes were under way; they count as overflowed.
    """

    packets: int = 0
    late: int = 0
    worst_ms: float = 0.0
    overrun: int = 0
    overfull: int = 0


class Pipe:
    """One direction of a line at work. First in, first out."""

    __slots__ = ("_before", "_delay", "_free_at", "_loss", "_patience", "_per_byte", "_random", "link")

    def __init__(self, link: Link, seed: str) -> None:
        # A stream of its own for each pipe: traffic elsewhere does not change which packets are lost here.
        self._random = random.Random(seed).random
        self._free_at = -math.inf
        self.become(link)

    def become(self, link: Link) -> None:
        """Be like ``link`` from now on. Packets under way keep their times.

        What waits to be sent stays ahead of what comes; on a shorter way later packets may overtake earlier ones.
        """
        self.link = link
        self._per_byte = 0.0 if link.rate_mbit is None else 1 / link.bytes_per_second
        self._patience = math.inf if link.rate_mbit is None else link.queue_limit * self._per_byte + ROUNDING_SECONDS
        self._delay = link.delay_ms / 1000
        self._loss = link.loss
        self._before = self._free_at  # until then what waited before the change is sent; it does not fill this queue

    def enter(self, now: float, size: int, traffic: Traffic) -> float | None:
        """When a packet of ``size`` bytes that enters at ``now`` is through, s; None if it is dropped."""
        free_at = max(now, self._free_at)
        through = free_at + size * self._per_byte
        if through - max(now, self._before) > self._patience:  # the queue in bytes, told in the seconds they take
            traffic.overflowed += 1
            return None
        self._free_at = through
        if self._loss and self._random() < self._loss:
            traffic.lost += 1
            return None
        return through + self._delay


class _Route:
    """The way from one host to another."""

    __slots__ = ("downlink", "path", "severed", "target", "traffic", "uplink")

    def __init__(self, target: int, uplink: Pipe, path: Pipe, downlink: Pipe) -> None:
        self.target = target
        self.uplink, self.path, self.downlink = uplink, path, downlink
        self.severed = False
        self.traffic = Traffic()


class Network:
    """Hosts, the line between any two, and the line each of them is attached by.

    A packet passes the sender's uplink, the line between the two, and the receiver's downlink. Uplink and downlink are
    shared by everything a host sends or receives.

    Parameters
    ----------
    addresses : sequence
        The IP addresses of every host, packed (4 or 16 bytes).
    link : Link
        Every line between two hosts, each way.
    uplink, downlink : Link
        What attaches every host.
    seed : int
        Of the losses.
    most : int
        Bytes that may be under way, `PACKET_COST` more counted for each packet; what is sent beyond them is dropped.
    """

    def __init__(
        self,
        addresses: Sequence[Sequence[bytes]],
        *,
        link: Link,
        uplink: Link,
        downlink: Link,
        seed: int,
        most: int = MAX_UNDER_WAY,
    ) -> None:
        count = len(addresses)
        self._owners = {address: host for host, own in enumerate(addresses) for address in own}
        self.uplinks = [Pipe(uplink, f"{seed} {host} up") for host in range(count)]
        self.downlinks = [Pipe(downlink, f"{seed} {host} down") for host in range(count)]
        self._routes = [
            {
                target: _Route(target, self.uplinks[source], Pipe(link, f"{seed} {source} {target}"), downlink)
                for target, downlink in enumerate(self.downlinks)
                if target != source
            }
            for source in range(count)
        ]
        # (when, running number, bytes, route, whether the downlink is still ahead)
        self._under_way: list[tuple[float, int, bytes, _Route, bool]] = []
        self._room = most
        self._number = 0
        self.lateness = Lateness()
        self.strays = 0
        """Packets to nobody here, dropped."""

    def path(self, source: int, target: int) -> Pipe:
        """The line from one host to another."""
        return self._routes[source][target].path

    def sever(self, pairs: Iterable[tuple[int, int]], severed: bool) -> None:
        """Drop everything from each source to its target, what is under way too; or no longer."""
        for source, target in pairs:
            self._routes[source][target].severed = severed
        if severed:
            # Now, not when it would arrive: by then the cut may be healed.
            kept = []
            for entry in self._under_way:
                if (route := entry[3]).severed:
                    route.traffic.cut += 1
                    self._room += len(entry[2]) + PACKET_COST
                else:
                    kept.append(entry)
            heapq.heapify(kept)
            self._under_way = kept

    def traffic(self) -> Iterator[tuple[int, int, Traffic]]:
        """Source, target and the counts for every ordered pair."""
        for source, routes in enumerate(self._routes):
            for target, route in routes.items():
                yield source, target, route.traffic

    def send(self, now: float, source: int, packet: bytes) -> None:
        """Take an IP packet that ``source`` sends at ``now`` (s)."""
        # The destination address of IPv4 lies at bytes 16 to 20, that of IPv6 at 24 to 40.
        target = self._owners.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
        route = None if target is None else self._routes[source].get(target)
        if route is None:
            self.strays += 1
            return
        size = len(packet)
        traffic = route.traffic
        traffic.sent += 1
        traffic.sent_bytes += size
        if route.severed:
            traffic.cut += 1
            return
        if size + PACKET_COST > self._room:
            traffic.overflowed += 1
            self.lateness.overfull += 1
            return
        # What leaves the uplink for this path enters it in order, so its time there can be told in advance. A downlink
        # has several sources: its turn comes when the packet is there.
        at = route.uplink.enter(now, size, traffic)
        if at is not None:
            at = route.path.enter(at, size, traffic)
            if at is not None:
                self._push(at, packet, route, True)

    def arrivals(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Target and packet of everything that has arrived by ``now`` (s), in order of time."""
        while self._under_way and self._under_way[0][0] <= now:
            at, _, packet, route, downlink_ahead = heapq.heappop(self._under_way)
            self._room += len(packet) + PACKET_COST
            traffic = route.traffic
            if downlink_ahead:
                through = route.downlink.enter(at, len(packet), traffic)
                if through is None:
                    continue
                if through > now:
                    self._push(through, packet, route, False)
                    continue
                at = through
            traffic.delivered += 1
            traffic.delivered_bytes += len(packet)
            self._note_lateness(now - at)
            yield route.target, packet

    @property
    def next_arrival(self) -> float:
        """When the next packet is due (s); infinite if none is under way."""
        return self._under_way[0][0] if self._under_way else math.inf

    def _push(self, at: float, packet: bytes, route: _Route, downlink_ahead: bool) -> None:
        self._number += 1
        self._room -= len(packet) + PACKET_COST
        heapq.heappush(self._under_way, (at, self._number, packet, route, downlink_ahead))

    def _note_lateness(self, seconds: float) -> None:
        lateness = self.lateness
        lateness.packets += 1
        if seconds > LATE_SECONDS:
            lateness.late += 1
            lateness.worst_ms = max(lateness.worst_ms, 1000 * seconds)
