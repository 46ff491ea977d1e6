"""Real hosts on loopback: each one is a p2pd process and a hivemind node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from tests.dht.world import LOOPBACK, eventually

StartHost = Callable[..., Awaitable[Host]]


@pytest.fixture
async def start_host() -> AsyncIterator[StartHost]:
    """Starts hosts that are stopped when the test ends: ``await start_host(initial_peers=other.addresses())``."""
    started: list[Host] = []

    async def start(identity: Identity | None = None, **options: Any) -> Host:
        settings: dict[str, Any] = {"listen": [LOOPBACK], "clock": SystemClock(), "startup_timeout": 30.0}
        host = await Host.start(identity or Identity.ephemeral(), **(settings | options))
        started.append(host)
        return host

    yield start
    await asyncio.gather(*(host.stop() for host in started))


@pytest.fixture
async def pair(start_host: StartHost) -> tuple[Host, Host]:
    """Two hosts that know each other."""
    first = await start_host()
    second = await start_host(initial_peers=first.addresses())
    await eventually(lambda: first.node.protocol.routing_table.uid_to_peer_id)
    await eventually(lambda: second.node.protocol.routing_table.uid_to_peer_id)
    return first, second
