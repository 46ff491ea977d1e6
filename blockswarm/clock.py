"""The one clock everything reads: Unix seconds that never jump, correctable by a measured offset.

``SystemClock`` counts on ``CLOCK_BOOTTIME`` (it goes on while the machine sleeps and never steps), so a process that
was stopped or suspended sees on waking that its deadline has passed. Tests inject ``ManualClock`` and never sleep.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


def _monotonic() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Protocol):
    """What the rest of the code may ask of time. All values are Unix seconds (UTC)."""

    def now(self) -> float:
        """The swarm's current time in Unix seconds."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return at ``when`` (Unix seconds), at once if it has passed."""
        ...


class SystemClock:
    """Real time: a suspend-proof monotonic clock anchored to the wall clock once, plus ``offset`` seconds."""

    def __init__(self) -> None:
        self._anchor = time.time() - _monotonic()
        self.offset = 0.0

    def now(self) -> float:
        return _monotonic() + self._anchor + self.offset

    async def sleep_until(self, when: float) -> None:
        # Slices of a second keep a sleeper honest when the machine is suspended or the offset is corrected meanwhile.
        while (left := when - self.now()) > 0:  # noqa: ASYNC110 - time itself is what is waited for
            await asyncio.sleep(min(left, 1.0))


class ManualClock:
    """A clock moved by hand, for tests: ``advance`` wakes the sleepers whose time has come, in order."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._ids = itertools.count()

    def now(self) -> float:
        return self._now

    async def sleep_until(self, when: float) -> None:
        if when <= self._now:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (when, next(self._ids), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move time forward by ``seconds``, letting each sleeper run at its own moment."""
        target = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            when, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, when)
            if not woken.done():
                woken.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._now = max(self._now, target)  # what was woken may have moved it too
