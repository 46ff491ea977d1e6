"""Replicas in memory that can be parted and come together again, with all that a fork needs of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from blockswarm.peer.connection import Connection
from blockswarm.peer.exchange import Guest
from blockswarm.peer.forks import Forks, Judgement
from blockswarm.peer.giving import serve_states
from blockswarm.peer.line import serve_lines
from blockswarm.peer.post import HolderSource
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State, StateStore
from tests.peer.wires import Replica, Wires


async def nobody() -> tuple[str, ...]:
    """What a look at the records finds on this side."""
    return ()


class Partition:
    """Wires with a line of states for every replica, kept in a folder."""

    def __init__(self, wires: Wires, folder: Path) -> None:
        self.wires = wires
        self.folder = folder
        self.rng = np.random.default_rng(0)
        self.events: list[dict[str, Any]] = []
        self.stores: dict[str, StateStore] = {}
        self.forks: dict[str, Forks] = {}
        for replica in self.replicas:
            self.start(replica)

    @property
    def replicas(self) -> list[Replica]:
        return list(self.wires.replicas.values())

    def start(self, replica: Replica) -> None:
        """Give a replica a store and forks, as after a start; what is on disk stays there."""
        own, wires = replica.identity.peer_id, self.wires
        store = self.stores[own] = StateStore(wires.clock)
        store.commit(replica.state)
        self.forks[own] = Forks(
            wires.manifest,
            own,
            wires.clock,
            store,
            call=wires.caller(replica).call,
            emit=lambda event: self.events.append(event | {"peer": own}),
            state_dir=self.folder / own,
        )
        serve_states(replica, store)
        serve_lines(replica, self.forks[own].lines)

    async def begin(self, *replicas: Replica) -> None:
        for replica in replicas or self.replicas:
            await self.forks[replica.identity.peer_id].begin(replica.state)

    def next_number(self) -> int:
        return 1 + max(0, *(replica.state.round for replica in self.replicas), self.wires.next_round() - 1)

    async def round(
        self,
        there: list[Replica],
        samples: int = 16,
        *,
        deltas: list[np.ndarray] | None = None,
        guest: Callable[[int], Guest] | None = None,
    ) -> tuple[list[RoundResult], np.ndarray]:
        """One round of those that are there, and the mean of what they trained.

        The first of them brings in ``guest``, made for the round's number.
        """
        number, wires = self.next_number(), self.wires
        size = wires.manifest.parameters(wires.subject)
        if deltas is None:
            deltas = [(1e-3 * self.rng.standard_normal(size)).astype(np.float32) for _ in there]
        ids = [replica.identity.peer_id for replica in there]
        times = there[0].desk.times(number)
        await wires.clock.sleep_until(times.train_end)
        exchanges = []
        for replica, delta in zip(there, deltas, strict=True):
            own = replica.identity.peer_id
            exchange = wires.exchange(replica, number, delta, samples)
            exchange.replicas = tuple(peer for peer in ids if peer != own)
            exchange.look_again = nobody
            exchange.guests = (guest(number),) if guest is not None and replica is there[0] else ()
            exchange.merge = await self.forks[own].merge(wires.subject, number)
            exchange.note_merge = partial(self.forks[own].note_merge, wires.subject)
            exchanges.append(exchange)
        results = await asyncio.gather(*(run_round(exchange) for exchange in exchanges))
        for replica, exchange, result in zip(there, exchanges, results, strict=True):
            await exchange.finish()
            assert result.failure == ""
            assert result.state is not None
            own = replica.identity.peer_id
            np.testing.assert_array_equal(exchange.delta, deltas[there.index(replica)])  # as it was trained
            self.stores[own].commit(result.state)
            await self.forks[own].committed(replica.state, result.state)
            replica.state = result.state
        return results, np.mean(np.stack(deltas), axis=0)

    async def meet(self, replica: Replica, state: State, holders: list[Replica]) -> Judgement:
        """A replica learns of a state, and goes over to it if that wins."""
        own = replica.identity.peer_id
        forks = self.forks[own]
        judgement = await forks.examine(replica.state, state.head, [holder.identity.peer_id for holder in holders])
        if judgement.go:
            before, replica.state = replica.state, state
            self.stores[own].commit(state)
            await forks.adopted(before, state)
        return judgement

    def source(self, replica: Replica, holders: list[Replica]) -> HolderSource:
        """Where a replica finds newer states."""
        ids = [holder.identity.peer_id for holder in holders]
        connection = SimpleNamespace(
            host=SimpleNamespace(call=self.wires.caller(replica).call, peer_id=replica.identity.peer_id),
            view=SimpleNamespace(holders=lambda subject: ids),
            manifest=self.wires.manifest,
            clock=self.wires.clock,
        )
        return HolderSource(cast(Connection, connection), self.forks[replica.identity.peer_id])

    def told(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]
