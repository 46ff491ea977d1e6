"""How far the own clock is off, asked from several peers (NTP style)."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockswarm.dht.errors import RpcError

if TYPE_CHECKING:
    from blockswarm.dht.host import Host

MAX_ASKED = 16
EXCHANGES = 3


async def measure_offset(host: Host, peers: Sequence[str], timeout: float) -> float | None:
    """See `Host.measure_offset`."""
    measured = await asyncio.gather(*(_offset_to(host, peer, timeout) for peer in peers[:MAX_ASKED]))
    offsets = [offset for offset in measured if offset is not None]
    return statistics.median(offsets) if offsets else None


async def _offset_to(host: Host, peer_id: str, timeout: float) -> float | None:
    """Their time minus ours: of a few exchanges the quickest, assuming that both ways took equally long."""
    best: tuple[float, float] | None = None
    with contextlib.suppress(RpcError):
        for _ in range(EXCHANGES):
            sent, tick = host.clock.now(), time.monotonic()
            reply = await host.call(peer_id, "hello", {}, timeout=timeout)
            trip = time.monotonic() - tick
            theirs = reply.body.get("time")
            if type(theirs) is float and 0 < theirs < 1e12 and (best is None or trip < best[0]):
                best = trip, theirs - (sent + trip / 2)
    return best[1] if best else None
