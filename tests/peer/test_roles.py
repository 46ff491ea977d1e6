"""A volunteer measures itself: what is too slow for a round makes it a contributor, and it says so once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from blockswarm.peer.roles import Roles
from blockswarm.peer.trainer import Trainer
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.contributing import SWITCH_AFTER
from tests.peer.test_live import MANIFEST, VectorLearner

SECONDS = MANIFEST.rounds.seconds


class Slow(VectorLearner):
    """Its first step takes its time, as the first one does where code is compiled."""

    def __init__(self) -> None:
        super().__init__(np.zeros(1), np.zeros(1))
        self.pause = 0.05

    def step(self) -> float:
        time.sleep(self.pause)
        self.pause = 0.0
        return 1.0


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer[Any]]:
    made: Trainer[Any] = Trainer(Slow)
    made.start()
    yield made
    await made.stop()


def roles_of(
    trainer: Trainer[Any], manifest: Manifest = MANIFEST, *, others: bool = True
) -> tuple[Roles, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return Roles(manifest, trainer, others=lambda: others, emit=told.append), told


async def test_a_first_step_that_is_slow_for_being_the_first_makes_nobody_a_contributor(trainer: Trainer[Any]):
    trainer.train(True)
    await trainer.first_step.wait()
    trainer.step_seconds = 2 * SECONDS
    roles, told = roles_of(trainer)
    async with asyncio.timeout(10):
        assert not await roles.first()
    assert not roles.contributor and told == [] and trainer.step_seconds < 1.0


async def test_who_is_too_slow_says_so_once_and_again_when_it_is_fast_enough(trainer: Trainer[Any]):
    roles, told = roles_of(trainer)
    roles.upload_seconds = 2 * MANIFEST.rounds.scatter
    assert [roles.judge() for _ in range(SWITCH_AFTER + 3)].count(True) == 1
    assert roles.contributor and [event["contributor"] for event in told] == [True]
    assert told[0]["upload_seconds"] == roles.upload_seconds and told[0]["load"] == 2.0
    roles.upload_seconds = 0.1 * MANIFEST.rounds.scatter
    assert [roles.judge() for _ in range(SWITCH_AFTER + 3)].count(True) == 1
    assert not roles.contributor and [event["contributor"] for event in told] == [True, False]


async def test_who_cannot_hand_over_one_step_in_time_is_told_that_it_can_only_serve(trainer: Trainer[Any]):
    roles, told = roles_of(trainer)
    trainer.step_seconds = 8 * SECONDS
    assert roles.judge(at_once=True)
    assert [event["event"] for event in told] == ["role", "warning"] and "only serve" in told[1]["message"]


async def test_without_members_or_where_late_work_is_dropped_everybody_is_a_member(trainer: Trainer[Any]):
    trainer.step_seconds = 2 * SECONDS
    alone, _ = roles_of(trainer, others=False)
    assert not alone.judge(at_once=True)
    dropping = MANIFEST.from_mapping(
        MANIFEST.to_mapping() | {"rounds": MANIFEST.to_mapping()["rounds"] | {"late": "drop"}}
    )
    strict, _ = roles_of(trainer, dropping)
    assert not strict.judge(at_once=True)
