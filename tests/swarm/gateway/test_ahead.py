"""The next piece is made while the last one is sent, and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from blockswarm.swarm.gateway.ahead import one_ahead


class Counting:
    """Gives numbers, and remembers how many, and whether it was closed."""

    def __init__(self, until: int) -> None:
        self.made, self.closed, self._until = 0, False, until

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            while self.made < self._until:
                await asyncio.sleep(0)
                self.made += 1
                yield self.made
            if self._until == 3:
                raise ValueError("no more")
        finally:
            self.closed = True


async def test_all_items_come_in_order_and_one_is_made_ahead() -> None:
    counting = Counting(5)
    found = []
    async with aclosing(one_ahead(counting.items())) as items:
        async for item in items:
            found.append(item)
            for _ in range(20):
                await asyncio.sleep(0)
            assert counting.made == min(5, item + 1)
    assert found == [1, 2, 3, 4, 5] and counting.closed


async def test_who_stops_reading_stops_the_making() -> None:
    counting = Counting(5)
    async with aclosing(one_ahead(counting.items())) as items:
        assert await anext(items) == 1
    assert counting.closed and counting.made <= 2


async def test_what_goes_wrong_comes_after_what_went_well() -> None:
    counting = Counting(3)
    found = []
    with pytest.raises(ValueError, match="no more"):
        async for item in one_ahead(counting.items()):
            found += [item]
    assert found == [1, 2, 3] and counting.closed


async def test_a_reader_that_is_cancelled_leaves_nothing_at_work() -> None:
    counting = Counting(1_000_000)

    async def read() -> None:
        async with aclosing(one_ahead(counting.items())) as items:
            async for _ in items:
                pass

    reading = asyncio.create_task(read())
    while counting.made < 3:  # noqa: ASYNC110 - nothing tells when it is so
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert counting.closed
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
