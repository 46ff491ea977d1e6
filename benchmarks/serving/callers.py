"""Many clients at once: each writes one text after another, and says how long it waited. Run by ``load``."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from blockswarm.swarm import AsyncSwarmClient
from blockswarm.swarm.errors import ClientError

CLIENTS = 8
"""Connections are shared by as many callers as are left over."""


class Callers:
    """What a crowd of callers went through.

    Parameters
    ----------
    size : int
        Bytes of a text.
    until : float
        ``time.monotonic()`` after which no text is begun.
    """

    def __init__(self, size: int, until: float) -> None:
        self.first: list[float] = []
        self.per_byte: list[float] = []
        self.errors: list[str] = []
        self.bytes = 0
        self._size = size
        self._until = until

    async def call(self, client: AsyncSwarmClient, number: int) -> None:
        """One text after another."""
        turn = 0
        while time.monotonic() < self._until:
            turn += 1
            began, first = time.monotonic(), None
            options: dict[str, Any] = {"max_bytes": self._size, "seed": 1000 * number + turn, "temperature": 1.0}
            try:
                async for _ in client.stream(f"{number} and {turn} make ", timeout=120, **options):
                    first = first or time.monotonic() - began
            except ClientError as error:
                self.errors.append(str(error)[:200])
                continue
            self.bytes += self._size
            self.first.append(first or time.monotonic() - began)
            self.per_byte.append((time.monotonic() - began) / self._size)

    def told(self, seconds: float) -> dict[str, Any]:
        """The figures."""
        return {
            "texts": len(self.first),
            "lost": len(self.errors),
            "bytes_per_s": round(self.bytes / seconds, 2),
            "first_byte_s": percentiles(self.first),
            "byte_s": percentiles(self.per_byte),
            "errors": sorted(set(self.errors))[:5],
        }


def percentiles(values: list[float]) -> dict[str, float] | None:
    """p50, p95 and p99."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 4) for share in (50, 95, 99)
    }


async def crowd(peers: str, count: int, size: int, seconds: float) -> dict[str, Any]:
    """So many callers for so long; texts under way at the end are finished."""
    clients = [await AsyncSwarmClient.connect(peers, timeout=60) for _ in range(min(count, CLIENTS))]
    try:
        began = time.monotonic()
        callers = Callers(size, began + seconds)
        await asyncio.gather(*(callers.call(clients[number % len(clients)], number) for number in range(count)))
        told = callers.told(time.monotonic() - began)
        told["processor_s"] = round(time.process_time(), 3)
        told["hedges"] = sum(client.stats.hedges for client in clients)
        told["refused"] = sum(client.stats.failures for client in clients)
        return told
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def main() -> int:
    """Print the figures as JSON."""
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("peers")
    top.add_argument("--callers", type=int, required=True)
    top.add_argument("--bytes", type=int, default=32)
    top.add_argument("--seconds", type=float, required=True)
    options = top.parse_args()
    print(json.dumps(asyncio.run(crowd(options.peers, options.callers, options.bytes, options.seconds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
