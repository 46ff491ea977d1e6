"""Running a long-lived async program under uvloop so that it always ends when told to.

The first SIGINT, SIGTERM or SIGHUP asks for a graceful end. If that takes longer than `GRACE_SECONDS`, or a second
signal arrives, the process and its children end at once: no wait in the program can keep it alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType

GRACE_SECONDS = 5.0
"""Time for goodbye, hand-over and saving, s."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_stopped(program: Callable[[asyncio.Event], Awaitable[int]], *, grace: float = GRACE_SECONDS) -> int:
    """Run ``program(stop)`` to its end and return its exit code.

    Parameters
    ----------
    program : callable
        Gets the event that is set when the program should leave gracefully; returns the exit code.
    grace : float
        Seconds from the first signal to the forced end.
    """
    import uvloop

    async def body() -> int:
        stop = asyncio.Event()
        handler = _StopHandler(asyncio.get_running_loop(), stop, grace)
        for number in SIGNALS:
            signal.signal(number, handler)
        try:
            return await program(stop)
        finally:
            handler.finished()

    return uvloop.run(body())


class _StopHandler:
    """Plain signal handlers, not the loop's: they run between two bytecodes even if the loop itself is stuck."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event, grace: float) -> None:
        self._loop = loop
        self._stop = stop
        self._grace = grace
        self._timer: threading.Timer | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._timer is not None:
            end_now(128 + number)
        # A thread counts the grace time, so that a loop that never runs again is ended too.
        self._timer = threading.Timer(self._grace, self._out_of_time, [number])
        self._timer.daemon = True
        self._timer.start()
        self._loop.call_soon_threadsafe(self._stop.set)

    def _out_of_time(self, number: int) -> None:
        print(f"error: did not stop within {self._grace:g} s: ending at once", file=sys.stderr, flush=True)
        end_now(128 + number)

    def finished(self) -> None:
        """The program has ended by itself: the grace time is over, and signals mean what they usually do."""
        if self._timer is not None:
            self._timer.cancel()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def end_now(code: int) -> None:
    """Kill every child of this process and leave, without waiting for anything."""
    import psutil

    try:
        for child in psutil.Process().children(recursive=True):
            try:
                child.kill()
            except psutil.Error:
                continue
    finally:
        os._exit(code)
