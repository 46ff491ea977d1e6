"""The process that carries packets between hosts. Started by `World`, ends with it, however that one ends.

It makes the namespaces, holds the only TUN device of each, and does what its owner says over a socket: a line of JSON
in, a line of JSON out. When the owner is gone it ends what still lives in the namespaces, and then itself; with that
they are gone too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import operator
import os
import select
import socket
import sys
import time
from typing import Any

import psutil

from benchmarks.hosts import kernel
from benchmarks.hosts.channel import line_of
from benchmarks.hosts.errors import HostsError
from benchmarks.hosts.link import Link
from benchmarks.hosts.network import Network, Traffic

BREATH_SECONDS = 0.00025
"""Time between two looks at busy lines. To wake up costs as much as to carry several packets, so some are gathered;
each is late by that much at most when it is fetched and when it is handed over."""

BATCH = 64
"""Most packets fetched from one device before the others have their turn."""

DEVICE_QUEUE = 5000
"""Packets the kernel keeps for us while we have no processor: 0.3 s of 200 Mbit/s at 1500 bytes."""

FAREWELL_SECONDS = 5.0
"""What the processes of a world get to end by themselves when its owner is gone."""

_counts = operator.attrgetter(*(field.name for field in dataclasses.fields(Traffic)))

LOOK_SECONDS = 0.1
PRIORITY = 2
"""Real-time priority, above that of `flows.undisturbed`."""


class Forwarder:
    """The namespaces with their devices, and the loop over them.

    Parameters
    ----------
    owner : int
        Process id of whoever started us.
    control : socket.socket
        Where its words come from.
    """

    def __init__(self, owner: int, control: socket.socket) -> None:
        self._owner = os.pidfd_open(owner)
        self._control = control
        self._unread = b""
        self._tuns: list[int] = []
        self._counters: list[int] = []
        self._namespaces: list[int] = []
        self._network: Network
        self._mtu = 0
        self._orphaned_at: float | None = None
        self._look_at = 0.0
        self._over = False

    def build(self, plan: dict[str, Any]) -> None:
        """Make the hosts and hand file descriptors of their namespaces to the owner.

        Parameters
        ----------
        plan : dict
            ``addresses`` (for each host a list with prefix lengths), ``mtu``, ``seed``, ``congestion``, and ``link``,
            ``uplink``, ``downlink`` as `Link.to_dict` gives them.
        """
        self._mtu = plan["mtu"]
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        given = []
        for addresses in plan["addresses"]:
            self._namespaces.append(kernel.leave_network())
            self._tuns.append(kernel.open_tun())
            given.append(kernel.raise_interfaces(addresses, mtu=self._mtu, queue=DEVICE_QUEUE))
            if plan["congestion"] is not None:
                kernel.set_congestion_control(plan["congestion"])
            # Opened here, it tells of this namespace for good.
            self._counters.append(os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC))
        kernel.enter_network(home)
        os.close(home)
        self._network = Network(
            [[kernel.packed(address) for address in addresses] for addresses in given],
            link=Link(**plan["link"]),
            uplink=Link(**plan["uplink"]),
            downlink=Link(**plan["downlink"]),
            seed=plan["seed"],
        )
        socket.send_fds(self._control, [line_of({"addresses": given})], self._namespaces)

    @staticmethod
    def hurry() -> None:
        """Let nothing come between a packet and its time, as far as we may."""
        with contextlib.suppress(OSError):
            # A better nice value counts for little: each terminal session is weighed as a whole (autogroup).
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
        kernel.wake_punctually()
        # Packets are freed by their reference counts; a collection in between would only make others late.
        gc.freeze()
        gc.disable()

    def run(self) -> None:
        """Carry packets until the owner says it is over, or is gone."""
        network, now = self._network, time.monotonic
        sources = {tun: source for source, tun in enumerate(self._tuns)}
        watched: list[Any] = [*self._tuns, self._control, self._owner]
        gather = False
        while not self._over:
            if gather:
                time.sleep(BREATH_SECONDS)
            # Unlike epoll's, the timeout of select is finer than a millisecond.
            timeout = 0.0 if gather else max(0.0, min(network.next_arrival - now(), LOOK_SECONDS))
            ready = select.select(watched, [], [], timeout)[0]
            moment = now()
            full = False
            for event in ready:
                if event in sources:
                    full |= self._fetch(event, sources[event], moment)
                elif event is not self._control or not self._obey():
                    self._orphaned_at = moment
                    watched = list(self._tuns)
                    break
            handed = self._hand_over(now())
            gather = bool(ready or handed) and not full
            if self._orphaned_at is not None and moment >= self._look_at:
                self._look_at = moment + LOOK_SECONDS
                self._clear_away(moment - self._orphaned_at)

    def _fetch(self, tun: int, source: int, moment: float) -> bool:
        """Take what a host sends; True if there may be more."""
        send, read, mtu = self._network.send, os.read, self._mtu
        try:
            for _ in range(BATCH):
                send(moment, source, read(tun, mtu))
        except BlockingIOError:
            return False
        return True

    def _hand_over(self, moment: float) -> int:
        """Give hosts what has arrived for them; how many packets it was."""
        tuns, write, count = self._tuns, os.write, 0
        for target, packet in self._network.arrivals(moment):
            count += 1
            try:
                write(tuns[target], packet)
            except OSError:
                continue  # a host that takes its device down gets nothing
        return count

    def _obey(self) -> bool:
        """Do what the owner asks for; False when it has hung up."""
        try:
            received = self._control.recv(1 << 16)
        except ConnectionError:
            received = b""
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._control.sendall(line_of(self._do(json.loads(line))))
        return bool(received)

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        network = self._network
        match order:
            case {"do": "path", "from": source, "to": target, "link": link}:
                network.path(source, target).become(Link(**link))
            case {"do": "uplink", "host": host, "link": link}:
                network.uplinks[host].become(Link(**link))
            case {"do": "downlink", "host": host, "link": link}:
                network.downlinks[host].become(Link(**link))
            case {"do": "sever", "pairs": pairs, "severed": severed}:
                network.sever(pairs, severed)
            case {"do": "traffic"}:
                return {"traffic": [[source, target, *_counts(each)] for source, target, each in network.traffic()]}
            case {"do": "lateness"}:  # apart: it must not itself make packets late, as every pair's traffic does
                network.lateness.overrun = sum(map(_dropped_before_us, self._counters))
                return {"lateness": dataclasses.asdict(network.lateness), "strays": network.strays}
            case {"do": "end"}:
                self._over = True
            case _:
                return {"error": f"the forwarder does not know {order!r}"}
        return {}

    def _clear_away(self, seconds: float) -> None:
        """``seconds`` after the owner has gone: leave when the hosts are empty, and see to it that they will be."""
        left = kernel.processes_in({kernel.namespace_id(namespace) for namespace in self._namespaces})
        self._over = not left
        if seconds > FAREWELL_SECONDS:
            for process in left:
                with contextlib.suppress(psutil.Error):  # it ended meanwhile
                    process.kill()


def _dropped_before_us(counters: int) -> int:
    """Packets to the TUN device that the kernel dropped because its queue was full."""
    text = os.pread(counters, 1 << 14, 0).decode()
    (words,) = (line.split(":")[1].split() for line in text.splitlines() if line.strip().startswith(kernel.DEVICE))
    return int(words[11])  # the fourth of the columns for what is sent


def main() -> None:
    """``python -m benchmarks.hosts.forwarder OWNER FD``; `World` calls it."""
    owner, descriptor = map(int, sys.argv[1:])
    with socket.socket(fileno=descriptor) as control:
        forwarder = Forwarder(owner, control)
        forwarder.hurry()
        plan = json.loads(control.makefile("r").readline())
        try:
            forwarder.build(plan)
        except (OSError, HostsError) as error:
            control.sendall(line_of({"error": str(error)}))
            return
        forwarder.run()


if __name__ == "__main__":
    main()
