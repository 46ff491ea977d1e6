"""The event loop's lateness, measured while it runs."""

import asyncio
import time

from blockswarm.peer.lag import PERIOD_SECONDS, LagMeter


async def test_a_loop_that_was_blocked_shows_it_and_reading_starts_afresh():
    meter = LagMeter()
    watching = asyncio.create_task(meter.watch())
    assert meter.take() is None
    await asyncio.sleep(PERIOD_SECONDS * 1.5)
    time.sleep(0.3)  # what must not happen in a peer  # noqa: ASYNC251
    await asyncio.sleep(PERIOD_SECONDS)
    assert meter.take() > 150
    assert meter.take() is None
    watching.cancel()
