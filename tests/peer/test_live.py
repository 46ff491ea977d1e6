"""Live weights are the certified state plus pending work, through commits, adoptions and lost rounds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from blockswarm.clock import ManualClock
from blockswarm.model.config import ModelConfig
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.heads import Head
from blockswarm.peer.live import REBASE_ROUNDS, LiveWeights, Settlement
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.peer.transfer import TransferError
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.policy.contributing import STALEST, staleness_discount

MANIFEST = create_manifest(
    name="live", now=1_000_000.0, size=ModelConfig(kind="mlp", dim=16, blocks=2, layers=1, heads=1, context=16)
)
BLOCK = 1
RNG = np.random.default_rng(0)


class VectorLearner:
    """Two vectors that grow by one a step: enough of a learner to see what is added to it."""

    samples_per_step = 16

    def __init__(self, theta: np.ndarray, embedding: np.ndarray) -> None:
        self.theta, self.embedding = theta.copy(), embedding.copy()
        self.certified, self.resets = 0, 0

    def step(self) -> float:
        self.theta += 1.0
        self.embedding += 1.0
        return 1.0

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        return self.theta.copy(), self.embedding.copy()

    def add(self, theta: np.ndarray | None, embedding: np.ndarray | None) -> None:
        if theta is not None:
            self.theta += theta
        if embedding is not None:
            self.embedding += embedding

    def load(self, theta: np.ndarray | None, embedding: np.ndarray | None) -> None:
        self.theta = self.theta if theta is None else theta.copy()
        self.embedding = self.embedding if embedding is None else embedding.copy()

    def set_certified(self, samples: int) -> None:
        self.certified = samples

    def reset_optimizer(self, warmup_steps: int) -> None:
        self.resets += 1

    def evaluate(self, windows: np.ndarray) -> float:
        return float(self.theta.mean())  # finite when the weights are; no more is asked of it here


class World:
    """Live weights over a real trainer thread that makes two steps per snapshot."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = StateStore(self.clock)
        genesis = {subject: State.genesis(MANIFEST, subject) for subject in (BLOCK, EMBEDDING)}
        for state in genesis.values():
            self.store.commit(state)
        self.trainer: Trainer[Learner] = Trainer(
            lambda: VectorLearner(genesis[BLOCK].values, genesis[EMBEDDING].values), local_steps=2
        )
        self.trainer.start()
        self.trainer.train(True)
        self.live = LiveWeights(BLOCK, MANIFEST, self.clock, self.store, self.trainer)

    async def trained(self) -> Any:
        """The learner, once it has made the steps it was given."""
        async with asyncio.timeout(10):
            while self.trainer.steps == 0 or self.trainer.steps % 2:
                await self.trainer.run(lambda learner: learner)
            return await self.trainer.run(lambda learner: learner)

    def state(self, round_number: int, *, samples: int = 100) -> State:
        size = MANIFEST.parameters(BLOCK)
        return State.make(BLOCK, round_number, RNG.standard_normal(size).astype(np.float32), samples=samples)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.trained()
    yield made
    await made.trainer.stop()


async def test_a_snapshot_holds_the_work_of_both_subjects_and_what_it_took(world: World):
    parent = world.live.head(BLOCK).values
    await world.clock.advance(4.0)
    snapshot = await world.live.snapshot()
    np.testing.assert_allclose(snapshot.values[BLOCK] - parent, 2.0, atol=1e-5)
    assert snapshot.samples == {BLOCK: 32, EMBEDDING: 32}
    assert snapshot.seconds == 4.0 and world.live.samples_per_second == 8.0
    assert 0.0 < snapshot.busy <= world.trainer.busy_seconds


async def test_a_commit_brings_the_live_weights_onto_the_new_state_and_tells_the_schedule(world: World):
    parent = world.live.head(BLOCK)
    snapshot = await world.live.snapshot()
    delta = snapshot.values[BLOCK] - parent.values
    new = world.state(1)
    await world.live.settle(Settlement(new, parent, delta, delta, snapshot.samples[BLOCK]))
    learner = await world.trained()
    later = learner.theta - new.values  # at most the steps made since the snapshot
    assert np.ptp(later) < 1e-4 and -1e-4 < later.mean() < 2.001
    assert learner.certified == 100
    assert world.live.head(BLOCK) is new


async def test_a_state_a_few_rounds_newer_carries_our_work_along_at_the_discount(world: World):
    new = world.state(REBASE_ROUNDS)
    assert await world.live.adopt(new) is True
    learner = await world.trained()
    np.testing.assert_allclose(learner.theta - new.values, 2.0 * MANIFEST.rounds.carry_discount, atol=1e-4)
    assert learner.resets == 0
    assert world.live.ledgers[BLOCK].pending == 32 * MANIFEST.rounds.carry_discount


async def test_where_late_work_is_dropped_nothing_of_it_stays(world: World):
    rules = dataclasses.replace(MANIFEST, rounds=MANIFEST.rounds.model_copy(update={"late": "drop"}))
    live = LiveWeights(BLOCK, rules, world.clock, world.store, world.trainer)
    world.trainer.train(False)
    parent = live.head(BLOCK)
    snapshot = await live.snapshot()
    delta = snapshot.values[BLOCK] - parent.values
    committed = world.state(1)
    await live.settle(Settlement(committed, parent, delta, None, snapshot.samples[BLOCK]))  # late: it was not accepted
    learner = await world.trainer.run(lambda learner: learner)
    np.testing.assert_allclose(learner.theta, committed.values, atol=1e-5)
    assert live.ledgers[BLOCK].pending == 0
    await world.trainer.run(lambda learner: learner.add(np.float32(1.0), None))
    fetched = world.state(2)
    await live.adopt(fetched)
    np.testing.assert_allclose(learner.theta, fetched.values, atol=1e-5)


async def test_a_contributors_work_is_carried_for_longer_and_discounted_by_its_age(world: World):
    world.live.contributes = True
    new = world.state(4)
    assert await world.live.adopt(new) is True
    learner = await world.trained()
    share = staleness_discount(4, MANIFEST.rounds.carry_discount)
    np.testing.assert_allclose(learner.theta - new.values, 2.0 * share, atol=1e-4)
    assert world.live.ledgers[BLOCK].pending == pytest.approx(32 * share)
    assert await world.live.adopt(world.state(5 + STALEST)) is False


async def test_what_was_handed_over_leaves_the_live_weights_and_is_not_pending_any_more(world: World):
    snapshot = await world.live.snapshot()
    sent = snapshot.values[BLOCK] - world.live.head(BLOCK).values
    learner = await world.trained()
    before = learner.theta.copy()
    pending = world.live.ledgers[BLOCK].pending
    world.trainer.train(False)
    await world.live.hand_over(BLOCK, sent, snapshot.samples[BLOCK])
    np.testing.assert_allclose(before - learner.theta, sent, atol=1e-5)
    assert world.live.ledgers[BLOCK].pending == pending - snapshot.samples[BLOCK]


async def test_a_much_newer_state_replaces_our_weights_and_the_optimizer_starts_afresh(world: World):
    new = world.state(REBASE_ROUNDS + 1)
    assert await world.live.adopt(new) is False
    learner = await world.trained()
    np.testing.assert_array_equal(learner.theta, new.values)
    assert learner.resets == 1 and world.live.ledgers[BLOCK].pending == 0


async def test_a_candidate_that_others_certified_counts_our_work_as_what_it_is(world: World):
    parent = world.live.head(BLOCK)
    snapshot = await world.live.snapshot()
    delta = snapshot.values[BLOCK] - parent.values
    candidate = world.state(1)
    world.live.keep_candidate(Settlement(candidate, parent, delta, delta, snapshot.samples[BLOCK]))
    assert await world.live.adopt(candidate) is True
    assert world.live.ledgers[BLOCK].pending == 0  # it was accepted, not carried
    assert world.live.head(BLOCK).digest == candidate.digest


async def test_weights_that_are_not_finite_begin_again_from_the_certified_state(world: World):
    world.trainer.train(False)
    await world.trainer.run(lambda learner: learner.add(np.float32("nan"), None))
    await world.live.snapshot()
    await world.live.restart([BLOCK])
    learner = await world.trainer.run(lambda learner: learner)
    np.testing.assert_array_equal(learner.theta, world.live.head(BLOCK).values)
    assert learner.embedding.min() > world.live.head(EMBEDDING).values.min()  # the other subject goes on
    assert learner.resets == 1
    assert world.live.ledgers[BLOCK].pending == 0 and world.live.ledgers[EMBEDDING].pending > 0


class Source:
    """Gives one state, or fails."""

    def __init__(self, state: State | None = None, error: Exception | None = None) -> None:
        self.state, self.error = state, error
        self.asked: list[list[Head]] = []

    async def newer(self, own: State, heads: list[Head]) -> State | None:
        self.asked.append(heads)
        if self.error:
            raise self.error
        return self.state if own.subject == BLOCK else None


def catching_up(world: World, source: Source) -> tuple[CatchUp, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return CatchUp(world.live, source, world.clock, emit=events.append, adopted=lambda: None), events


async def test_a_last_look_before_training_goes_over_to_what_others_have(world: World):
    new = world.state(5)
    catch_up, events = catching_up(world, Source(new))
    await catch_up.refresh()
    assert world.live.head(BLOCK) is new and not catch_up.busy(BLOCK)
    assert [(event["event"], event["round"]) for event in events] == [("state", 5)]


async def test_news_ends_the_wait_for_the_rounds_close(world: World):
    new, head = world.state(5), Head("peer", 5, b"d" * 32, 100)
    source = Source(new)
    catch_up, _ = catching_up(world, source)
    catch_up.start(BLOCK, [], not_before=world.clock.now() + 3600)
    await asyncio.sleep(0)
    assert catch_up.busy(BLOCK) and not source.asked
    catch_up.hear(BLOCK, head)
    async with asyncio.timeout(10):
        while catch_up.busy(BLOCK):
            await world.trainer.run(lambda learner: learner)
    assert world.live.head(BLOCK) is new


async def test_a_state_that_is_not_heavier_any_more_is_not_adopted(world: World):
    own = world.state(1, samples=500)
    world.store.commit(own)
    catch_up, events = catching_up(world, Source(world.state(1, samples=100)))
    await catch_up.refresh()
    assert world.live.head(BLOCK) is own and not events


async def test_of_two_states_with_as_many_samples_the_one_with_the_lower_digest_is_gone_over_to(world: World):
    one, other = world.state(1, samples=500), world.state(1, samples=500)
    lower, higher = sorted((one, other), key=lambda state: state.digest)
    world.store.commit(higher)
    catch_up, _ = catching_up(world, Source(lower))
    await catch_up.refresh()
    assert world.live.head(BLOCK) is lower
    catch_up, _ = catching_up(world, Source(higher))
    await catch_up.refresh()
    assert world.live.head(BLOCK) is lower


async def test_a_transfer_that_fails_is_told_and_the_next_one_may_try(world: World):
    catch_up, events = catching_up(world, Source(error=TransferError("nobody gives it")))
    await catch_up.refresh()
    assert events[0]["event"] == "warning" and "nobody gives it" in events[0]["message"]
    assert not catch_up.busy(BLOCK)
