"""Waiting for something that handlers write down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """What can be waited on until a condition over it holds."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake whoever waits."""
        self._changed.set()

    async def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``condition`` holds, at most ``seconds``; whether it held."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not condition():
            left = end - loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return condition()
        return True
