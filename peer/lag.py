"""How late the event loop is: what a stranger's call waits at least before it is looked at."""

from __future__ import annotations

import asyncio

PERIOD_SECONDS = 0.05
KEPT = 4096
"""Samples between two readings at most: over three minutes' worth."""


class LagMeter:
    """Samples the event loop's lateness while it runs; read once per report.

    Parameters
    ----------
    period : float
        Seconds between two samples.
    """

    def __init__(self, period: float = PERIOD_SECONDS) -> None:
        self._period = period
        self._late: list[float] = []

    async def watch(self) -> None:
        """Sample for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._period
            await asyncio.sleep(self._period)
            if len(self._late) < KEPT:
                self._late.append(loop.time() - due)

    def samples(self) -> list[float]:
        """The lateness seen since the last call, in milliseconds."""
        late, self._late = self._late, []
        return [1000 * each for each in late]

    def take(self, share: float = 0.99) -> float | None:
        """The given quantile of the lateness since the last call, in milliseconds; ``None`` without samples."""
        late = self.samples()
        return quantile(late, share) if late else None


def quantile(late: list[float], share: float) -> float:
    """The sample below which so many of them are; of at least one."""
    return round(sorted(late)[min(len(late) - 1, int(share * len(late)))], 2)
