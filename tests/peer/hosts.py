"""Real hosts on loopback for tests: each with its own p2pd, all gone at the end; and rounds between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import SystemClock
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.peer.desk import Desk
from blockswarm.peer.exchange import Exchange
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import Manifest

PHASES = {"meet": 10.0, "scatter": 6.0, "decide": 6.0, "gather": 6.0, "commit": 8.0}
"""Long enough for a busy machine; a phase ends as soon as all are through."""

SAMPLES = 16


class Skipping(SystemClock):
    """A clock that is set forward to the next round, so that nobody sits through the time between two."""

    skipped = 0.0

    def now(self) -> float:
        return super().now() + self.skipped

    def skip_to(self, moment: float) -> None:
        """Set forward to ``moment``, unless it is past."""
        self.skipped += max(0.0, moment - self.now())

    def skip_to_round(self, desk: Desk, number: int) -> int:
        """Set forward to the meeting of round ``number``, or of the first later one that has not begun; its number."""
        while desk.times(number).train_end < self.now():
            number += 1
        self.skip_to(desk.times(number).train_end)
        return number


def small_updates(number: int, count: int, size: int) -> list[npt.NDArray[np.float32]]:
    """What ``count`` replicas bring into round ``number``."""
    rng = np.random.default_rng(number)
    return [(1e-3 * rng.standard_normal(size)).astype(np.float32) for _ in range(count)]


def exchange_over(
    host: Host,
    manifest: Manifest,
    clock: Skipping,
    desk: Desk,
    number: int,
    *,
    parent: State,
    delta: npt.NDArray[np.float32],
    others: Sequence[str],
    **choices: Any,
) -> Exchange:
    """A round as a volunteer begins it that has ``others`` on record; ``choices`` are given to `Exchange`."""

    async def look_again() -> tuple[str, ...]:
        return tuple(others)

    usual: dict[str, Any] = {"caller": host, "samples": SAMPLES, "look_again": look_again}
    return Exchange(
        identity=host.identity,
        manifest=manifest,
        clock=clock,
        book=desk.book(parent.subject, number),
        times=desk.times(number),
        parent=parent,
        delta=delta,
        replicas=tuple(others),
        **usual | choices,
    )


async def start_host(identity: Identity, run_digest: bytes) -> Host:
    """A host on a free port of loopback."""
    return await Host.start(
        identity, listen=["/ip4/127.0.0.1/tcp/0"], run_digest=run_digest, clock=SystemClock(), relay="off"
    )


def introduce(hosts: Sequence[Host]) -> None:
    """Tell all of them each other's addresses."""
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.learn(other.peer_id, other.addresses())


@asynccontextmanager
async def running_hosts(count: int, run_digest: bytes) -> AsyncIterator[list[Host]]:
    """``count`` hosts of one run that know each other's addresses."""
    started = await asyncio.gather(
        *(start_host(Identity.ephemeral(), run_digest) for _ in range(count)), return_exceptions=True
    )
    hosts = [host for host in started if isinstance(host, Host)]
    try:
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        introduce(hosts)
        yield hosts
    finally:
        await asyncio.gather(*(host.stop() for host in hosts), return_exceptions=True)
