"""How late the event loop is: what a stranger's call waits at least before it is looked at."""

from __future__ import annotations

import asyncio

PERIOD_SECONDS = 0.05
KEPT = 4096
"""Samples between two readings at most: over three minutes' worth."""


class LagMeter:
    """Samples the event loop's lateness while it runs; read once per report."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def watch(self) -> None:
        """Sample for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            if len(self._late) < KEPT:
                self._late.append(loop.time() - due)

    def take(self, share: float = 0.99) -> float | None:
        """The given quantile of the lateness since the last call, in milliseconds; ``None`` without samples."""
        late, self._late = sorted(self._late), []
        if not late:
            return None
        return round(1000 * late[min(len(late) - 1, int(share * len(late)))], 2)
