"""Two peers that would dial each other at the same moment take turns."""

from __future__ import annotations

import asyncio

from blockswarm.dht import dialing
from blockswarm.dht.dialing import is_dialed
from tests.dht.world import new_host


async def two_in_order():
    """Hosts that do not know of each other, the one whose id comes first in front."""
    hosts = [await new_host() for _ in range(2)]
    return sorted(hosts, key=lambda host: host.peer_id)


async def test_the_later_one_in_order_finds_itself_connected_by_the_earlier_one():
    earlier, later = await two_in_order()
    try:
        earlier.learn(later.peer_id, later.addresses())
        waiting = asyncio.create_task(is_dialed(later.control, later.peer_id, earlier.peer_id))
        assert not await is_dialed(earlier.control, earlier.peer_id, later.peer_id), "the dial is its own, at once"
        await earlier.call(later.peer_id, "hello", {}, timeout=10)
        assert await waiting
    finally:
        await asyncio.gather(earlier.stop(), later.stop())


async def test_the_later_one_dials_when_the_earlier_one_does_not():
    earlier, later = await two_in_order()
    try:
        later.learn(earlier.peer_id, earlier.addresses())
        began = asyncio.get_running_loop().time()
        await later.call(earlier.peer_id, "hello", {}, timeout=10)
        assert asyncio.get_running_loop().time() - began >= dialing.HEAD_START
    finally:
        await asyncio.gather(earlier.stop(), later.stop())
