"""Real hosts on loopback for tests: each with its own p2pd, all gone at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from blockswarm.clock import SystemClock
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity


@asynccontextmanager
async def running_hosts(count: int, run_digest: bytes) -> AsyncIterator[list[Host]]:
    """``count`` hosts of one run that know each other's addresses."""
    started = await asyncio.gather(
        *(
            Host.start(
                Identity.ephemeral(),
                listen=["/ip4/127.0.0.1/tcp/0"],
                run_digest=run_digest,
                clock=SystemClock(),
                relay="off",
            )
            for _ in range(count)
        ),
        return_exceptions=True,
    )
    hosts = [host for host in started if isinstance(host, Host)]
    try:
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        for host in hosts:
            for other in hosts:
                if other is not host:
                    host.learn(other.peer_id, other.addresses())
        yield hosts
    finally:
        await asyncio.gather(*(host.stop() for host in hosts), return_exceptions=True)
