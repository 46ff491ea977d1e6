"""Three real hosts, one of them parted from the others for some rounds: news of theirs ends in one state of all."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from blockswarm.dht.host import Host
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.connection import Connection
from blockswarm.peer.desk import Desk
from blockswarm.peer.forks import Forks
from blockswarm.peer.giving import serve_states
from blockswarm.peer.heads import claim_of
from blockswarm.peer.line import serve_lines
from blockswarm.peer.live import LiveWeights
from blockswarm.peer.post import HolderSource
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from tests.peer.hosts import PHASES, SAMPLES, Skipping, exchange_over, running_hosts, small_updates
from tests.peer.test_live import VectorLearner
from tests.peer.wires import SMALLEST

pytestmark = pytest.mark.timeout(120)

BLOCK = 0
ROUNDS_APART = 3
"""As many as states are kept in memory: the one before the fork is on disk alone."""


class Peer:
    """A host with what catching up, forks and rounds need of a volunteer; nothing is trained here."""

    def __init__(self, host: Host, run: Manifest, clock: Skipping, folder: Path) -> None:
        self.host, self.run, self.clock = host, run, clock
        self.events: list[dict[str, Any]] = []
        self.adopted = asyncio.Event()
        self.store = store = StateStore(clock)
        for subject in (BLOCK, EMBEDDING):
            store.commit(State.genesis(run, subject))
        self.forks = Forks(
            run, host.peer_id, clock, store, call=host.call, emit=self.events.append, state_dir=folder / host.peer_id
        )
        self.desk = Desk(host.peer_id, run, clock, store.head)
        self.desk.register(host)
        serve_states(host, store)
        serve_lines(host, self.forks.lines)

    async def begin(self) -> None:
        for subject in (BLOCK, EMBEDDING):
            state = self.store.head(subject)
            assert state is not None
            await self.forks.begin(state)
        block, embedding = (self.store.head(subject) for subject in (BLOCK, EMBEDDING))
        assert block is not None and embedding is not None
        self.trainer: Trainer[Learner] = Trainer(lambda: VectorLearner(block.values, embedding.values))
        self.trainer.start()
        live = LiveWeights(BLOCK, self.run, self.clock, self.store, self.trainer)
        view = SimpleNamespace(holders=lambda subject: [])
        connection = SimpleNamespace(host=self.host, view=view, manifest=self.run, clock=self.clock)
        source = HolderSource(cast(Connection, connection), self.forks)
        self.catch_up = CatchUp(
            live, source, self.clock, emit=self.events.append, adopted=self.adopted.set, forks=self.forks
        )
        self.desk.on_news, self.desk.is_other_line = self.catch_up.hear, self.forks.is_news

    @property
    def state(self) -> State:
        state = self.store.head(BLOCK)
        assert state is not None
        return state

    async def take_part(self, number: int, delta: np.ndarray, others: list[str]) -> RoundResult:
        parent = self.state
        exchange = exchange_over(
            self.host,
            self.run,
            self.clock,
            self.desk,
            number,
            parent=parent,
            delta=delta,
            others=[peer for peer in others if peer != self.host.peer_id],
            merge=await self.forks.merge(BLOCK, number),
            note_merge=partial(self.forks.note_merge, BLOCK),
        )
        result = await run_round(exchange)
        await exchange.finish()
        assert result.failure == ""
        assert result.state is not None
        self.store.commit(result.state)
        await self.forks.committed(parent, result.state)
        return result


async def one_round(there: list[Peer]) -> tuple[list[RoundResult], np.ndarray]:
    """The next round of those that are there, and the mean of their updates."""
    number = there[0].clock.skip_to_round(there[0].desk, 1 + max(peer.state.round for peer in there))
    deltas = small_updates(number, len(there), len(there[0].state.values))
    ids = [peer.host.peer_id for peer in there]
    results = await asyncio.gather(
        *(peer.take_part(number, delta, ids) for peer, delta in zip(there, deltas, strict=True))
    )
    return list(results), np.mean(np.stack(deltas), axis=0)


async def test_news_of_a_heavier_line_brings_a_parted_host_back_with_its_work(tmp_path: Path) -> None:
    run = create_manifest(
        name="forks", now=time.time(), size=SMALLEST, round_seconds=60.0, phases=PHASES, compression="fp16", seed=1
    )
    clock = Skipping()
    async with running_hosts(3, run.digest) as hosts:
        peers = [Peer(host, run, clock, tmp_path) for host in hosts]
        for peer in peers:
            await peer.begin()
        winners, loser = peers[:2], peers[2]
        await one_round(peers)
        ancestor = loser.state
        for _ in range(ROUNDS_APART):
            await one_round(winners)
            await one_round([loser])
        won, lost = winners[0].state, loser.state
        assert loser.store.get(BLOCK, ancestor.digest) is None

        news = {"subject": BLOCK, **claim_of(won, proven=True)}
        await winners[0].host.call(loser.host.peer_id, "round.news", news, timeout=10)
        async with asyncio.timeout(20):
            await loser.adopted.wait()
        assert loser.state.digest == won.digest
        (fork,) = [event for event in loser.events if event["event"] == "fork"]
        assert fork["merging"] and fork["bytes"] > 0
        assert (fork["own_samples"], fork["other_samples"]) == (SAMPLES * ROUNDS_APART, 2 * SAMPLES * ROUNDS_APART)
        learner = await loser.trainer.run(lambda learner: cast(VectorLearner, learner))
        np.testing.assert_array_equal(learner.theta, won.values)  # no residual of the lost line's encoding stays
        assert learner.resets == 1

        trained = np.zeros_like(won.values)
        while await loser.forks.merge(BLOCK, loser.state.round + 1) is not None:
            results, mean = await one_round(peers)
            assert len({result.state.digest for result in results if result.state}) == 1
            assert not results[0].rejected and len(results[0].accepted) == 3
            trained += mean
        moved, way = winners[0].state.values - won.values - trained, lost.values - ancestor.values
        share = float(moved @ way) / float(way @ way)
        assert share == pytest.approx(fork["line_share"] * fork["clip"], abs=0.01)
        assert fork["line_share"] == pytest.approx(1 / 3)
        for peer in peers:
            await peer.trainer.stop()
