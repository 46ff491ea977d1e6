"""Twelve replicas in groups of four over real libp2p: one digest for all, and one that is killed costs no one else."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import numpy as np
import pytest

from blockswarm.dht.host import Host
from blockswarm.peer.desk import Desk
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import Manifest, create_manifest
from tests.peer.hosts import PHASES, Skipping, exchange_over, running_hosts, small_updates
from tests.peer.wires import SMALLEST

pytestmark = pytest.mark.timeout(300)

COUNT, GROUP = 12, 4


@dataclasses.dataclass
class Replica:
    """A host with what a volunteer's rounds need of it."""

    host: Host
    manifest: Manifest
    clock: Skipping
    state: State
    killed_at: str = ""
    """The phase at whose beginning its host is gone."""
    kill: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.desk = Desk(self.host.peer_id, self.manifest, self.clock, lambda subject: self.state)
        self.desk.register(self.host)

    async def take_part(self, number: int, delta: np.ndarray, others: tuple[str, ...]) -> RoundResult:
        def phase(name: str) -> None:
            if name == self.killed_at:
                self.kill = asyncio.create_task(self.host.stop())

        exchange = exchange_over(
            self.host,
            self.manifest,
            self.clock,
            self.desk,
            number,
            parent=self.state,
            delta=delta,
            others=others,
            on_phase=phase,
        )
        result = await run_round(exchange)
        await exchange.finish()
        if self.kill is not None:
            await self.kill
        if result.state is not None:
            self.state = result.state
        return result


async def one_round(replicas: list[Replica]) -> list[RoundResult]:
    """The next round of all that are still there."""
    there = [replica for replica in replicas if replica.kill is None]
    number = there[0].clock.skip_to_round(there[0].desk, 1 + there[0].state.round)
    ids = [replica.host.peer_id for replica in replicas]
    deltas = small_updates(number, len(there), len(there[0].state.values))
    return await asyncio.gather(
        *(
            replica.take_part(number, delta, tuple(peer_id for peer_id in ids if peer_id != replica.host.peer_id))
            for replica, delta in zip(there, deltas, strict=True)
        )
    )


async def test_twelve_hosts_in_three_groups_hold_one_state_after_every_round_one_of_them_killed_in_the_middle() -> None:
    run = create_manifest(
        name="groups", now=time.time(), size=SMALLEST, round_seconds=60.0, phases=PHASES, group_size=GROUP, seed=1
    )
    clock = Skipping()
    genesis = State.genesis(run, 0)
    async with running_hosts(COUNT, run.digest) as hosts:
        replicas = [Replica(host, run, clock, genesis) for host in hosts]

        first = await one_round(replicas)
        assert [result.failure for result in first] == [""] * COUNT
        assert len({result.state.digest for result in first if result.state}) == 1
        assert all(len(result.accepted) == COUNT and "combine" in result.phases_ms for result in first)

        victim = next(replica for replica in replicas if replica.host.peer_id == first[0].members[1])
        victim.killed_at = "combine"  # its group has decided; it should reduce for it, and own a part
        second = await one_round(replicas)
        others = [result for result, replica in zip(second, replicas, strict=True) if replica is not victim]
        assert [result.failure for result in others] == [""] * (COUNT - 1)
        assert len({result.state.digest for result in others if result.state}) == 1
        assert all(len(result.accepted) >= COUNT - 1 for result in others)

        third = await one_round(replicas)
        assert [result.failure for result in third] == [""] * (COUNT - 1)
        assert len({result.state.digest for result in third if result.state}) == 1
        assert third[0].state is not None and third[0].state.round > others[0].state.round
