"""Traffic to measure lines with: echoes, datagrams that are counted, and streams. In threads of this process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from benchmarks.hosts.host import Host

PORT = 5000
CHUNK_BYTES = 1 << 16
ANSWER_SECONDS = 2.0
"""An echo later than this is lost."""
BURST_SECONDS = 0.005
QUIET_SECONDS = 0.5
"""When nothing comes for this long after the last was sent, the rest is lost."""
RECEIVE_BYTES = 4 << 20


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Measure at real-time priority, where we may: what the machine does besides is not the fault of the lines.

    It holds for the calling thread and for those it starts meanwhile.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


class Echo:
    """A host that sends every datagram back, and another that asks it. A context manager.

    Parameters
    ----------
    asker, answerer : Host
    """

    def __init__(self, asker: Host, answerer: Host, *, ipv6: bool = False) -> None:
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        self._there = (answerer.address6 if ipv6 else answerer.address, PORT)
        self._asker = asker.socket(socket.SOCK_DGRAM, family)
        self._asker.settimeout(ANSWER_SECONDS)
        self._answerer = answerer.socket(socket.SOCK_DGRAM, family)
        self._answerer.bind(self._there)
        self._answerer.settimeout(0.1)
        self._number = 0
        self._over = False
        self._thread = threading.Thread(target=self._answer, name="echo")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join()
        self._asker.close()
        self._answerer.close()

    def round_trip(self, *, patience: float = ANSWER_SECONDS) -> float | None:
        """Milliseconds until the answer came; None if none did within ``patience`` seconds."""
        self._number += 1
        question = self._number.to_bytes(8, "big")
        begin = time.perf_counter()
        self._asker.sendto(question, self._there)
        deadline = begin + patience
        while (left := deadline - time.perf_counter()) > 0:
            self._asker.settimeout(left)
            with contextlib.suppress(TimeoutError):
                if self._asker.recv(64) == question:  # an earlier one's answer may come late
                    return 1000 * (time.perf_counter() - begin)
        return None

    def round_trips(self, count: int, *, interval: float = 0.002) -> list[float]:
        """Milliseconds of each of ``count`` round trips that came back, with pauses of ``interval`` s."""
        times = []
        for _ in range(count):
            if (milliseconds := self.round_trip()) is not None:
                times.append(milliseconds)
            time.sleep(interval)
        return times

    def _answer(self) -> None:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                question, sender = self._answerer.recvfrom(64)
                self._answerer.sendto(question, sender)


class Stream:
    """A TCP connection from one host to another that carries as much as the line takes. A context manager.

    Attributes
    ----------
    received : int
        Bytes of payload that have arrived so far.
    """

    def __init__(self, source: Host, target: Host) -> None:
        self.received = 0
        self._over = False
        listener = target.socket()
        self._sender = source.socket()
        with listener:
            listener.bind((target.address, 0))
            listener.listen()
            self._sender.settimeout(10.0)
            self._sender.connect(listener.getsockname())
            self._receiver, _ = listener.accept()
        self._threads = [threading.Thread(target=work, name="stream") for work in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        for end in (self._sender, self._receiver):
            with contextlib.suppress(OSError):  # the other end has closed it
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._receiver.close()

    def rate(self, seconds: float) -> float:
        """Payload that arrives during the next ``seconds``, in Mbit/s."""
        before, begin = self.received, time.perf_counter()
        time.sleep(seconds)
        return 8e-6 * (self.received - before) / (time.perf_counter() - begin)

    def _send(self) -> None:
        payload = bytes(CHUNK_BYTES)
        self._sender.settimeout(None)
        with contextlib.suppress(OSError):  # closed
            while not self._over:
                self._sender.sendall(payload)

    def _receive(self) -> None:
        space = memoryview(bytearray(4 * CHUNK_BYTES))
        with contextlib.suppress(OSError):  # closed
            while not self._over and (got := self._receiver.recv_into(space)):
                self.received += got


def count_datagrams(source: Host, target: Host, count: int, *, size: int = 100, burst: int = 50) -> list[int]:
    """Send ``count`` numbered datagrams of ``size`` bytes and return the numbers of those that arrived, in order.

    Sent in small bursts with pauses, so that no buffer of the hosts overflows.
    """
    arrived: list[int] = []
    sent = threading.Event()
    receiver = target.socket(socket.SOCK_DGRAM)
    with receiver, source.socket(socket.SOCK_DGRAM) as sender:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        receiver.bind((target.address, PORT))
        receiver.settimeout(QUIET_SECONDS)

        def receive() -> None:
            while True:
                over = sent.is_set()
                try:
                    arrived.append(int.from_bytes(receiver.recv(size)[:4], "big"))
                except TimeoutError:
                    if over:
                        return

        thread = threading.Thread(target=receive, name="datagrams")
        thread.start()
        for number in range(count):
            sender.sendto(number.to_bytes(4, "big") + bytes(size - 4), (target.address, PORT))
            if number % burst == burst - 1:
                time.sleep(BURST_SECONDS)
        sent.set()
        thread.join()
    return arrived
