"""One volunteer between its rounds: what it does when it wakes up too late, or when its training went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockswarm.dht.errors import DhtError, RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord
from blockswarm.dht.rpc import Reply
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.desk import Desk
from blockswarm.peer.forks import Forks
from blockswarm.peer.shelf import KEPT_ROUNDS
from blockswarm.peer.view import SwarmView
from blockswarm.peer.volunteer import LOOKS_AFTER_SLEEP, Volunteer
from blockswarm.swarm.manifest import EMBEDDING
from blockswarm.swarm.policy.phases import RoundTimes
from tests.peer.test_live import BLOCK, MANIFEST, Source, World
from tests.peer.test_view import ListedDirectory


class Nobody:
    """A network without anybody in it."""

    async def call(self, peer_id: str, method: str, body: Mapping[str, Any], **options: Any) -> Reply:
        raise RpcError("unreachable", f"there is no {peer_id}")


class SlowDirectory(ListedDirectory):
    """Nobody is on record; the first looks fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        """Looks at a block that are still to fail."""
        self.answered = 0

    async def entries(self, block: int) -> list[BlockRecord]:
        if self.failures > 0:
            self.failures -= 1
            raise DhtError("no node answers")
        self.answered += 1
        return await super().entries(block)


class Bench:
    """A volunteer alone on record, over live weights and a trainer that are real."""

    def __init__(self) -> None:
        self.world = World()
        self.events: list[dict[str, Any]] = []
        identity = Identity.ephemeral()
        live, clock = self.world.live, self.world.clock
        self.desk = Desk(identity.peer_id, MANIFEST, clock, self.world.store.head)
        self.source, self.directory = Source(), SlowDirectory()
        catch_up = CatchUp(live, self.source, clock, emit=self.events.append, adopted=lambda: None)
        self.volunteer = Volunteer(
            manifest=MANIFEST,
            identity=identity,
            clock=clock,
            caller=Nobody(),
            desk=self.desk,
            trainer=self.world.trainer,
            live=live,
            catch_up=catch_up,
            forks=Forks(
                MANIFEST, identity.peer_id, clock, self.world.store, call=Nobody().call, emit=self.events.append
            ),
            view=SwarmView(self.directory, MANIFEST, identity.peer_id, clock),
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


async def test_who_was_stopped_for_rounds_looks_around_before_it_takes_part_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Else it might commit alone, from a state that the others have left long ago."""
    clock, seconds = bench.world.clock, MANIFEST.rounds.seconds
    failures, rounds = MANIFEST.model.blocks * (LOOKS_AFTER_SLEEP - 1), list[tuple[int, int, bool]]()

    async def one_round(times: RoundTimes) -> None:
        rounds.append((times.round, len(bench.source.asked), times.round >= bench.volunteer.alone_from))
        bench.directory.failures = failures  # the connections of a machine that slept are gone, too
        await clock.advance(times.close - clock.now() + (5 * seconds if len(rounds) == 2 else 0.0))

    monkeypatch.setattr(bench.volunteer, "one_round", one_round)
    bench.world.trainer.train(True)
    await bench.volunteer.run(4)
    subjects = len(bench.world.live.subjects)
    assert rounds == [
        (1, subjects, True),
        (2, subjects, True),
        (8, 2 * subjects, False),  # alone it would only carry its work: the others may just not have been reached yet
        (9, 2 * subjects, True),
    ]
    assert bench.directory.answered == MANIFEST.model.blocks and bench.directory.failures == failures


async def test_when_training_has_ended_a_volunteer_goes_on_serving(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    world, volunteer = bench.world, bench.volunteer
    volunteer.manifest = replace(MANIFEST, recipe=replace(MANIFEST.recipe, train_samples=1000))
    rounds: list[int] = []

    async def one_round(times: RoundTimes) -> None:
        rounds.append(times.round)
        await world.live.adopt(world.state(times.round, samples=500 * times.round))
        await world.clock.advance(times.close - world.clock.now())

    monkeypatch.setattr(volunteer, "one_round", one_round)
    world.trainer.train(True)
    ended = asyncio.Event()
    running = asyncio.create_task(volunteer.run(3, on_trained=ended.set))
    async with asyncio.timeout(10):
        await ended.wait()
    assert rounds == [1, 2] and bench.told("trained") == [
        {"event": "trained", "block": BLOCK, "round": 2, "samples": 1000}
    ]
    steps = world.trainer.steps
    await world.clock.advance(bench.desk.times(3).close - world.clock.now())
    async with asyncio.timeout(10):
        await running
    assert rounds == [1, 2] and world.trainer.steps == steps


async def test_a_round_reports_the_state_it_made_although_a_newer_one_was_fetched_before_the_report(bench: Bench):
    newer, trainer = bench.world.state(9), bench.world.trainer

    class Overtaken:
        """The trainer; while it evaluates, news of a later round arrives."""

        step_seconds = trainer.step_seconds

        async def run(self, work: Callable[[Any], Any]) -> Any:
            await bench.world.live.adopt(newer)
            return await trainer.run(work)

    bench.volunteer.trainer = Overtaken()
    times = bench.desk.times(3)
    await bench.world.clock.advance(times.train_end - bench.world.clock.now())
    await bench.volunteer.one_round(times)
    (report,) = [event for event in bench.told("round") if event["subject"] == BLOCK]
    assert report["committed"] and report["state_round"] == 3
    assert report["digest"] != newer.digest.hex() == bench.world.live.head(BLOCK).digest.hex()


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
