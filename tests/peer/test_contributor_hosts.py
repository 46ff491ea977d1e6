"""A contributor beside two members over real libp2p: its update goes out, is brought in, and leaves its weights."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

import numpy as np
import pytest

from blockswarm.peer.desk import Desk
from blockswarm.peer.heads import Head
from blockswarm.peer.hosting import Hosting
from blockswarm.peer.line import Line
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State
from blockswarm.peer.trainer import Trainer
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.manifest import create_manifest
from tests.peer.hosts import PHASES, Skipping, exchange_over, running_hosts
from tests.peer.test_contributor import Slow, SmallSteps
from tests.peer.test_round_groups_hosts import Replica
from tests.peer.wires import SMALLEST

pytestmark = pytest.mark.timeout(120)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - several threads change it
            await asyncio.sleep(0.02)


def two_steps(make: Callable[[], SmallSteps]) -> Trainer[SmallSteps]:
    """A real training thread that makes two steps between two snapshots."""
    return Trainer(make, local_steps=2)


@dataclasses.dataclass
class Member(Replica):
    """A replica that brings in contributors' updates."""

    def __post_init__(self) -> None:
        self.desk = Desk(
            self.host.peer_id, self.manifest, self.clock, lambda subject: self.state if subject == 0 else None
        )
        self.desk.register(self.host)
        self.hosting = Hosting(self.manifest, self.clock, self.desk)
        self.hosting.register(self.host)
        self.desk.line = lambda subject: Line.beginning(self.state)

    async def average(self, number: int, delta: np.ndarray, other: str) -> RoundResult:
        guests = self.hosting.guests(0, number)
        exchange = exchange_over(
            self.host,
            self.manifest,
            self.clock,
            self.desk,
            number,
            parent=self.state,
            delta=delta,
            others=(other,),
            guests=guests,
        )
        result = await run_round(exchange)
        await exchange.finish()
        self.hosting.settle(result, guests)
        self.state = result.state or self.state
        return result


class Newest:
    """Gives the contributor what the members hold."""

    def __init__(self, member: Member) -> None:
        self.member = member

    async def newer(self, own: State, heads: list[Head]) -> State | None:
        state = self.member.state
        return state if own.subject == 0 and state.samples > own.samples else None


async def test_a_contributors_update_goes_out_over_real_hosts_and_all_members_hold_the_same_state_with_it() -> None:
    run = create_manifest(name="late", now=time.time(), size=SMALLEST, round_seconds=60.0, phases=PHASES, seed=1)
    clock = Skipping()
    genesis = State.genesis(run, 0)
    async with running_hosts(3, run.digest) as (one, other, slow_host):
        members = [Member(host, run, clock, genesis) for host in (one, other)]
        names = [one.peer_id, other.peer_id]
        slow = Slow(run, clock, slow_host.identity, slow_host, names, Newest(members[0]), two_steps)
        slow.trainer.start()

        async def next_round(number: int) -> list[RoundResult]:
            clock.skip_to(members[0].desk.times(number).train_end)
            delta = np.full(len(genesis.values), 1e-3, np.float32)
            results = await asyncio.gather(
                *(member.average(number, delta, names[1 - index]) for index, member in enumerate(members))
            )
            clock.skip_to(members[0].desk.times(number).close)
            assert [result.failure for result in results] == ["", ""]
            assert len({result.state.digest for result in results if result.state}) == 1
            return results

        try:
            slow.trainer.train(True)
            await slow.trainer.first_step.wait()
            cycle = asyncio.create_task(slow.work.cycle())
            await until(lambda: any(member.hosting.guests(0, 1) for member in members))
            first = await next_round(1)
            async with asyncio.timeout(20):
                await cycle
            assert all(result.contributed == {slow_host.peer_id: 0} for result in first)
            assert all(sorted(result.accepted) == sorted(names) for result in first)
            told = slow.told()[-1]
            assert told["counted"] and told["bytes"] == encoded_size(len(genesis.values), run.averaging.compression)
            assert members[0].state.samples == 32 + told["samples"] and told["samples"] in (16, 32)
            assert slow.work.upload_seconds > 0
            second = await next_round(2)
            assert all(result.guests == [] for result in second)  # it counts once
            slow.trainer.train(False)
            await slow.work.catch_up.refresh()
            assert slow.live.head(0).digest == members[0].state.digest
        finally:
            await slow.trainer.stop()
