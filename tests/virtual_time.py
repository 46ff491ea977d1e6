"""Time that passes only while everybody waits: tests of rounds, deadlines and patience run as fast as they compute."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

EPOCH = 1_000_000.0
"""Unix seconds at which every virtual loop begins."""

LATE = 1e-6
"""Seconds by which a timer comes late. Real ones do too: who waits until a moment then finds that it has passed."""


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for the next timer, sets the loop's time to it."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # While a thread computes, time stands still: its end is an event, and nothing comes before it.
        events = super().select(None if self.loop.in_threads else 0)
        if not events:
            self.loop.now += timeout + LATE
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers come due at once, in their order, as soon as nothing else is left to do.

    Computing takes no time, so nothing depends on how busy the machine is. For coroutines that talk to each other in
    memory and for work in the default executor; sockets and processes would find their timeouts over.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        self.in_threads = 0
        super().__init__(selector)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run ``func`` in a thread, with time standing still meanwhile."""
        work = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        work.add_done_callback(self._done)
        return work

    def _done(self, work: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


class LoopClock:
    """A `blockswarm.clock.Clock` that shows the time of the running loop; outside of one, `EPOCH`."""

    def now(self) -> float:
        """Unix seconds."""
        try:
            return EPOCH + asyncio.get_running_loop().time()
        except RuntimeError:
            return EPOCH

    async def sleep_until(self, when: float) -> None:
        """Return at ``when`` (Unix seconds), at once if it has passed."""
        if (left := when - self.now()) > 0:
            await asyncio.sleep(left)
