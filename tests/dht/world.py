"""What the tests of this folder share: records to start from, and waiting for the network without guessing how long."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht import frames
from blockswarm.dht.directory import Directory
from blockswarm.dht.errors import RpcError
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord

RUN = "demo-0123456789ab"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NOBODY = "12D3KooWGRUZNiRz5ZbmKM6qPUbCBM46jCf7Jyd3RTcDpwmWqBTX"
"""A peer id whose owner does not exist."""


def block_record(identity: Identity, now: float, **changes: Any) -> BlockRecord:
    """A valid record of ``identity`` for block 1, with ``changes``."""
    fields: dict[str, Any] = {
        "run_id": RUN,
        "block": 1,
        "peer_id": identity.peer_id,
        "state": "TRAINING",
        "round": 41,
        "digest": b"d" * 32,
        "embedding_digest": b"e" * 32,
        "samples_per_second": 12.5,
        "addrs": (f"/ip4/192.0.2.7/tcp/4001/p2p/{identity.peer_id}",),
        "software": "blockswarm 0.1.0",
        "issued": now,
        "expires": now + 45.0,
    }
    return BlockRecord(**(fields | changes))


def now() -> float:
    """Unix seconds as real hosts see them."""
    return SystemClock().now()


async def eventually(condition: Callable[[], Any], *, within: float = 20.0) -> Any:
    """Wait until ``condition()`` (or what it awaits) is true, and return it; fail after ``within`` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert loop.time() < end, f"not within {within} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.05)


async def new_host(identity: Identity | None = None, **options: Any) -> Host:
    """A real host on loopback; whoever starts it stops it."""
    settings: dict[str, Any] = {"listen": [LOOPBACK], "clock": SystemClock(), "startup_timeout": 30.0}
    return await Host.start(identity or Identity.ephemeral(), **(settings | options))


def knows(host: Host, other: Host) -> bool:
    """Whether ``other`` is in the DHT routing table of ``host``."""
    return other.peer_id in map(str, host.node.protocol.routing_table.peer_id_to_uid)


@contextlib.asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts that know each other."""
    first = await new_host()
    try:
        second = await new_host(initial_peers=first.addresses())
        try:
            await eventually(lambda: knows(first, second) and knows(second, first))
            yield first, second
        finally:
            await second.stop()
    finally:
        await first.stop()


async def read_head(reader: asyncio.StreamReader) -> frames.ReplyHead:
    """The header of a reply from a raw stream."""
    length = frames.header_length(await asyncio.wait_for(reader.readexactly(4), 10))
    return frames.decode_reply(await reader.readexactly(length))


async def fails(call: Awaitable[Any], code: str) -> RpcError:
    """The `RpcError` a call ends in, which must have this code."""
    with pytest.raises(RpcError) as caught:
        await call
    assert caught.value.code == code, caught.value
    return caught.value


async def there(directory: Directory, block: int, **options: Any) -> list[BlockRecord]:
    """Who is on record for a block and has not said goodbye."""
    return [record for record in await directory.entries(block, **options) if record.state != "OFFLINE"]
