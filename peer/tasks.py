"""Background tasks with an owner: they end with the peer, and none fails in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

LETTING_GO_SECONDS = 1.0
"""How long work that is cancelled may take to clean up before it is left to itself."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two starts of a task that keeps failing: from the first to the longest, doubling."""

STEADY_SECONDS = 120.0
"""A task that ran this long before failing starts over with the first pause."""


class Supervisor:
    """Owns tasks; `stop` ends them all.

    Parameters
    ----------
    on_failure : callable
        Told the task's name and the error each time one fails.
    """

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failures: dict[str, int] = {}

    def once(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` once; a failure is reported and counted."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._report(name, error)

        return self._own(guarded(), name)

    def forever(self, name: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Run ``work()`` and start it again when it fails, with growing pauses."""

        async def guarded() -> None:
            loop = asyncio.get_running_loop()
            pause = FIRST_PAUSE
            while True:
                begin = loop.time()
                try:
                    await work()
                except Exception as error:
                    self._report(name, error)
                if loop.time() - begin > STEADY_SECONDS:
                    pause = FIRST_PAUSE
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)

        return self._own(guarded(), name)

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _report(self, name: str, error: BaseException) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        log.debug("task %s failed", name, exc_info=error)
        self._on_failure(name, error)

    async def stop(self, seconds: float = 1.0) -> None:
        """Cancel all tasks and wait for them, bounded."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


async def first_of(*works: Awaitable[T]) -> T:
    """The result of the first of several works to end; its error, if any, is raised, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=LETTING_GO_SECONDS)
