"""What a line is like, in one direction."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from benchmarks.hosts.errors import HostsError

MAX_DELAY_MS = 60_000.0
LEAST_QUEUE_BYTES = 65_536
QUEUE_SECONDS = 0.1
"""A queue of no stated size holds this much time of its line, and at least `LEAST_QUEUE_BYTES`."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a line: a transmitter of some rate, a queue before it, a way of some length behind it.

    Sizes are those of IP packets, headers included. A packet takes ``size / rate`` to be sent, one after the other
    (a token bucket of one packet's depth), then ``delay_ms`` to travel; what finds the queue full is dropped. A lost
    packet is lost on the way, after it has taken its time at the transmitter.

    Attributes
    ----------
    delay_ms : float
        Travel time one way, ms.
    rate_mbit : float, optional
        10⁶ bit/s; None: no limit, and no queue; only what the bench holds in all is bounded (`network.MAX_UNDER_WAY`).
    queue_bytes : int, optional
        Most bytes waiting to be sent, the packet being sent included; None: 0.1 s of the rate, at least 64 KiB.
    loss : float
        Probability that a packet is lost, each on its own.
    """

    delay_ms: float = 0.0
    rate_mbit: float | None = None
    queue_bytes: int | None = None
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.delay_ms <= MAX_DELAY_MS:
            raise HostsError(f"delay_ms is {self.delay_ms}: it must lie between 0 and {MAX_DELAY_MS:g}")
        if self.rate_mbit is not None and not 0 < self.rate_mbit < math.inf:
            raise HostsError(f"rate_mbit is {self.rate_mbit}: it must be above 0, or None for no limit")
        if self.queue_bytes is not None and self.rate_mbit is None:
            raise HostsError("queue_bytes without rate_mbit: nothing ever waits where there is no limit")
        if self.queue_bytes is not None and self.queue_bytes <= 0:
            raise HostsError(f"queue_bytes is {self.queue_bytes}: it must hold at least one packet")
        if not 0 <= self.loss <= 1:
            raise HostsError(f"loss is {self.loss}: it must lie between 0 and 1")

    def __str__(self) -> str:
        words = [f"{self.delay_ms:g} ms"] if self.delay_ms else []
        words += [] if self.rate_mbit is None else [f"{self.rate_mbit:g} Mbit/s, queue {self.queue_limit:g} bytes"]
        words += [f"loss {self.loss:g}"] if self.loss else []
        return ", ".join(words) or "free"

    @property
    def bytes_per_second(self) -> float:
        """The rate; infinite without a limit."""
        return math.inf if self.rate_mbit is None else self.rate_mbit * 1e6 / 8

    @property
    def queue_limit(self) -> float:
        """Bytes the queue holds; infinite without a rate."""
        if self.rate_mbit is None:
            return math.inf
        return self.queue_bytes or max(LEAST_QUEUE_BYTES, QUEUE_SECONDS * self.bytes_per_second)

    def to_dict(self) -> dict[str, float | int | None]:
        """Field → value; ``Link(**…)`` makes an equal one."""
        return dataclasses.asdict(self)


FREE = Link()
"""No delay, no limit, no loss."""
