"""Whether the swarm can be asked at the moment: every block needs a holder."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from blockswarm.errors import BlockswarmError
from blockswarm.swarm.operations import Holder

FRESH_SECONDS = 5.0
"""Age at which what is known of holders is looked up again: health may be asked for by anybody, however often."""

LOOK_SECONDS = 5.0
"""Time for looking it up."""


class Directory(Protocol):
    """What is asked of `AsyncSwarmClient`."""

    @property
    def run_id(self) -> str: ...

    async def holders(self, *, fresh: bool) -> dict[int, list[Holder]]: ...


class Health:
    """Answers ``/health``, from memory for a few seconds.

    Parameters
    ----------
    directory : AsyncSwarmClient
        Who knows.
    now : callable
        Seconds of a clock that only goes forward.
    """

    def __init__(self, directory: Directory, now: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._now = now
        self._looking = asyncio.Lock()
        self._at = -math.inf
        self._missing: list[int] | None = None

    async def tell(self, *, closing: bool) -> tuple[bool, dict[str, Any]]:
        """Whether texts can be written, and the JSON object that says so."""
        missing = await self._look()
        if closing:
            status = "shutting down"
        elif missing is None:
            status = "the swarm does not answer"
        else:
            status = "ok" if not missing else "blocks without a holder"
        told = {"status": status, "model": self._directory.run_id, "blocks_without_holder": missing}
        return status == "ok", told

    async def _look(self) -> list[int] | None:
        async with self._looking:
            if self._now() - self._at > FRESH_SECONDS:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        holders = await self._directory.holders(fresh=False)
                except (BlockswarmError, TimeoutError):
                    self._missing = None
                else:
                    alive = {block for block, known in holders.items() if any(one.rounds for one in known)}
                    self._missing = sorted(set(holders) - alive)
                self._at = self._now()
            return self._missing
