"""One volunteer between its rounds: what it does when it wakes up too late, or when its training went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest

from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.desk import KEPT_ROUNDS, Desk
from blockswarm.peer.view import SwarmView
from blockswarm.peer.volunteer import Volunteer
from blockswarm.swarm.manifest import EMBEDDING
from tests.peer.test_live import BLOCK, MANIFEST, Source, World
from tests.peer.test_view import ListedDirectory


class Nobody:
    """A network without anybody in it."""

    async def call(self, peer_id: str, method: str, body: Mapping[str, Any], **options: Any) -> Reply:
        raise RpcError("unreachable", f"there is no {peer_id}")


class Bench:
    """A volunteer alone on record, over live weights and a trainer that are real."""

    def __init__(self) -> None:
        self.world = World()
        self.events: list[dict[str, Any]] = []
        identity = Identity.ephemeral()
        live, clock = self.world.live, self.world.clock
        self.desk = Desk(identity.peer_id, MANIFEST, clock, self.world.store.head)
        catch_up = CatchUp(live, Source(), clock, emit=self.events.append, adopted=lambda: None)
        self.volunteer = Volunteer(
            manifest=MANIFEST,
            identity=identity,
            clock=clock,
            caller=Nobody(),
            desk=self.desk,
            trainer=self.world.trainer,
            live=live,
            catch_up=catch_up,
            view=SwarmView(ListedDirectory(), MANIFEST, identity.peer_id, clock),
            emit=self.events.append,
            committed=lambda: None,
            heldout=np.zeros((1, 17), np.uint8),
        )

    def told(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.world.trained()
    made.world.trainer.train(False)
    yield made
    await made.world.trainer.stop()


async def test_who_was_stopped_for_rounds_misses_the_round_and_goes_on(bench: Bench):
    times = bench.desk.times(3)
    await bench.world.clock.advance(times.close + (KEPT_ROUNDS + 2) * MANIFEST.rounds.seconds - bench.world.clock.now())
    await bench.volunteer.one_round(times)
    assert not bench.told("round") and "round 3 was over" in bench.told("warning")[0]["message"]


async def test_weights_that_are_not_finite_are_told_and_begin_again_without_this_round(bench: Bench):
    trainer = bench.world.trainer
    await trainer.run(lambda learner: learner.add(np.float32("nan"), None))
    times = bench.desk.times(3)
    await bench.world.clock.advance(times.train_end - bench.world.clock.now())
    await bench.volunteer.one_round(times)
    assert f"the weights of block {BLOCK} were not finite" in bench.told("warning")[0]["message"]
    learner = await trainer.run(lambda learner: learner)
    np.testing.assert_array_equal(learner.theta, bench.world.live.head(BLOCK).values)
    assert [event["subject"] for event in bench.told("round")] == [EMBEDDING]
