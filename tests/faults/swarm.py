"""Four replicas of one block on real hosts in this process, whose rounds follow each other without the time between.

Only the pause for training is left out: each round starts with its meeting, and its phases take real time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.peer.desk import Desk
from blockswarm.peer.download import TransferError
from blockswarm.peer.exchange import Exchange
from blockswarm.peer.giving import serve_states
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.shelf import latest_round
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.transfer import StateFetcher
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.policy.leader import leader_order
from tests.faults.injection import BEGINS, SIGNALS, Fault, Line
from tests.peer.hosts import Skipping, exchange_over, introduce, small_updates, start_host
from tests.peer.wires import SMALLEST

COUNT = 4
PHASES = {"meet": 1.0, "scatter": 0.6, "decide": 0.8, "gather": 0.6, "commit": 1.0}
"""On an idle machine, where each takes a twentieth of that when nothing is wrong."""

Results = dict[str, tuple[RoundResult, float]]
"""By peer id: what came of a round there, and how long after the round's close."""

FETCH_SECONDS = 20.0


@dataclass
class Replica:
    """A host, and what a volunteer's rounds need of it."""

    identity: Identity
    manifest: Manifest
    clock: Skipping
    host: Host
    line: Line = field(init=False)
    desk: Desk = field(init=False)
    store: StateStore = field(init=False)

    def __post_init__(self) -> None:
        self.settle()

    def settle(self) -> None:
        """Begin on the present host, as a process that has just started."""
        self.store = StateStore(self.clock)
        self.store.commit(State.genesis(self.manifest, 0))
        self.desk = Desk(self.host.peer_id, self.manifest, self.clock, self.store.head)
        self.desk.register(self.host)
        serve_states(self.host, self.store)
        self.line = Line(
            caller=self.host,
            identity=self.identity,
            run_digest=self.manifest.digest,
            compression=self.manifest.averaging.compression,
            clock=self.clock,
        )

    @property
    def id(self) -> str:
        return self.identity.peer_id

    @property
    def state(self) -> State:
        state = self.store.head(0)
        assert state is not None
        return state

    def signal(self, number: signal.Signals) -> None:
        """Send its p2pd a signal."""
        os.kill(self.host._daemon.pid, number)

    async def fetch(self, others: list[str]) -> None:
        """Take over a heavier state from those who have it, as a volunteer does that was left behind."""
        fetcher = StateFetcher(self.line.call, self.manifest, lambda: latest_round(self.manifest, self.clock))
        try:
            state = await fetcher.fetch(0, others, seconds=FETCH_SECONDS)
        except TransferError:
            return
        if heavier(state.samples, state.digest, self.state.samples, self.state.digest):
            self.store.commit(state)


@dataclass
class Swarm:
    """The replicas and the clock that they share."""

    manifest: Manifest
    clock: Skipping
    replicas: list[Replica]
    number: int = 0
    """The round that is on, or was the last one."""

    def order(self, number: int) -> list[Replica]:
        """The replicas in the order of a round."""
        ids = leader_order(self.ids, run_digest=self.manifest.digest, subject=0, round_number=number)
        return sorted(self.replicas, key=lambda replica: ids.index(replica.id))

    @property
    def ids(self) -> list[str]:
        return [replica.id for replica in self.replicas]

    def next_round(self) -> int:
        """Set the clock forward to the beginning of the next round's meeting; its number."""
        self.number = self.clock.skip_to_round(self.replicas[0].desk, self.number + 1)
        return self.number

    async def one_round(
        self, number: int, fault: Fault | None = None, victim: Replica | None = None, beyond: Replica | None = None
    ) -> Results:
        """A round of all; by peer id, what came of it and how long after its close.

        Parameters
        ----------
        number : int
            From `next_round`.
        fault : Fault, optional
            What ``victim`` does wrong.
        victim, beyond : Replica, optional
            The culprit; and whom it has no line to any more when the line is cut.
        """
        for replica in self.replicas:
            book = replica.desk.book(0, number)
            replica.line.begin(fault if replica is victim else None, replica.desk.times(number), book)

        def strike(phase: str) -> None:
            if fault is None or victim is None or phase != BEGINS[fault.phase]:
                return
            if fault.kind in SIGNALS:
                victim.signal(signal.Signals[SIGNALS[fault.kind]])
            elif fault.kind == "cut link" and beyond is not None:
                victim.line.cut_from.add(beyond.id)
                beyond.line.cut_from.add(victim.id)

        async def take_part(replica: Replica, delta: np.ndarray) -> tuple[RoundResult, float]:
            exchange = self._exchange(replica, number, delta)
            if replica is victim:
                exchange.on_phase = strike
            result = await run_round(exchange)
            after = self.clock.now() - exchange.times.close
            await exchange.finish()
            dead = replica is victim and fault is not None and fault.kind in SIGNALS
            if result.state is not None and not dead:
                replica.store.commit(result.state)
            return result, after

        deltas = small_updates(number, len(self.replicas), self.manifest.parameters(0))
        # The embedding of a real volunteer is averaged beside its block; here one subject is enough.
        found = await asyncio.gather(*map(take_part, self.replicas, deltas))
        if victim is not None and victim.line.under_way:
            await asyncio.wait(victim.line.under_way)
        return dict(zip(self.ids, found, strict=True))

    def _exchange(self, replica: Replica, number: int, delta: np.ndarray) -> Exchange:
        return exchange_over(
            replica.host,
            self.manifest,
            self.clock,
            replica.desk,
            number,
            parent=replica.state,
            delta=delta,
            others=[peer_id for peer_id in self.ids if peer_id != replica.id],
            caller=replica.line,
            standing=replica.desk.standing(0),
        )

    async def bring_back(self, fault: Fault, victim: Replica) -> None:
        """After its fault a replica is itself again: continued, or started anew."""
        if fault.kind == "stop":
            victim.signal(signal.SIGCONT)
        elif fault.kind == "kill":
            await victim.host.stop()
            victim.host = await start_host(victim.identity, self.manifest.digest)
            victim.settle()
            introduce([replica.host for replica in self.replicas])

    async def repair(self) -> None:
        """Whoever holds another state than others takes the heaviest over, through lines as they are."""
        if len({replica.state.digest for replica in self.replicas}) > 1:
            await asyncio.gather(
                *(
                    replica.fetch([peer_id for peer_id in self.ids if peer_id != replica.id])
                    for replica in self.replicas
                )
            )

    def heal(self) -> None:
        """All lines are whole again."""
        for replica in self.replicas:
            replica.line.heal()


@asynccontextmanager
async def running_swarm(pace: float) -> AsyncIterator[Swarm]:
    """A swarm whose phases are ``pace`` times as long as on an idle machine; all its hosts are gone at the end."""
    phases = {phase: round(pace * seconds, 3) for phase, seconds in PHASES.items()}
    seconds = 2 * sum(phases.values())
    manifest = create_manifest(
        name="faults", now=time.time(), size=SMALLEST, round_seconds=seconds, phases=phases, seed=1
    )
    clock = Skipping()
    replicas: list[Replica] = []
    try:
        for _ in range(COUNT):
            identity = Identity.ephemeral()
            replicas.append(Replica(identity, manifest, clock, await start_host(identity, manifest.digest)))
        introduce([replica.host for replica in replicas])
        yield Swarm(manifest, clock, replicas)
    finally:
        for replica in replicas:
            replica.line.heal()
        await asyncio.gather(*(replica.host.stop() for replica in replicas), return_exceptions=True)
