"""What one gateway takes on: sizes, numbers, seconds, and how many texts are written at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields

from blockswarm.naming import option
from blockswarm.swarm.gateway.errors import GivenGatewayError, too_busy

AT_ONCE = 4
"""Texts of one request that are written, or wait for their turn, at a time: a large one must not keep others out."""

RETRY_SECONDS = (1, 60)
"""Shortest and longest time that somebody is told to stay away."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a gateway; raises `GivenGatewayError` naming one that cannot work."""

    concurrency: int = 16
    """Texts written at a time."""
    queue: int = 64
    """Requests that may wait beside those at work."""
    timeout: float = 120.0
    """Seconds for a request, from its first byte to the last of the answer."""
    max_tokens: int = 2048
    """Bytes of one text."""
    max_prompt_bytes: int = 16 * 1024
    """Bytes of one prompt."""
    max_choices: int = 32
    """Texts of one request: prompts times ``n``."""
    max_body_bytes: int = 1024 * 1024
    """Bytes of a request's body."""
    body_seconds: float = 10.0
    """Seconds a request's body may take to come."""
    max_connections: int = 512
    """Open connections, idle ones included."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "queue" else 1
            if not (0 < value < math.inf if isinstance(field.default, float) else value >= least):
                raise GivenGatewayError(f"{option(field.name)} {value!r}: must be {least} or more")


class Gate:
    """Admits requests, and gives their texts turns in the order they came.

    Parameters
    ----------
    limits : Limits
        How many of each.
    now : callable
        Seconds of a clock that only goes forward.
    """

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._usual = 1.0  # seconds a text takes, a running mean
        self.requests = 0
        """Requests admitted and not yet answered."""
        self.running = 0
        """Texts being written."""
        self.waiting = 0
        """Texts that wait for their turn."""

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Let a request in while this lasts.

        Raises
        ------
        ApiError
            429 when as many are waiting as may; it says when to come again.
        """
        if self.requests >= self._limits.concurrency + self._limits.queue:
            raise too_busy(self.retry_after())
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn to write one text, and have it while this lasts."""
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        began = self._now()
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
            self._usual += 0.2 * (self._now() - began - self._usual)

    def retry_after(self) -> int:
        """Seconds in which the queue is likely to have moved, from how long texts took lately."""
        rounds = (self.waiting + 1) / self._limits.concurrency
        low, high = RETRY_SECONDS
        return min(high, max(low, math.ceil(rounds * self._usual)))
