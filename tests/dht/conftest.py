"""Real hosts on loopback: each one is a p2pd process and a hivemind node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from blockswarm.dht.host import Host
from tests.dht.world import new_host

StartHost = Callable[..., Awaitable[Host]]


@pytest.fixture
async def start_host() -> AsyncIterator[StartHost]:
    """Starts hosts that are stopped when the test ends: ``await start_host(initial_peers=other.addresses())``."""
    started: list[Host] = []

    async def start(*args: Any, **options: Any) -> Host:
        started.append(await new_host(*args, **options))
        return started[-1]

    yield start
    await asyncio.gather(*(host.stop() for host in started))
