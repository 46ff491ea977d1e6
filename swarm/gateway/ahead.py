"""Making the next piece of a text while the last one is on its way to the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same items, each asked for as soon as the one before is taken: one is ready or under way, never more.

    A reader who takes nothing is waited for with that one. Closing this closes ``items``.
    """

    async def take() -> tuple[T] | None:
        async for item in items:
            return (item,)
        return None

    coming = asyncio.ensure_future(take())
    try:
        while (taken := await coming) is not None:
            coming = asyncio.ensure_future(take())
            yield taken[0]
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()
