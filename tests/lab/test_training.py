"""A plan's outcome: the same every time, and what the fields of a plan change in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockswarm.lab.plan import Averaging, Plan, blocks_plan, plain_plan
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Trained, train
from blockswarm.model.config import RECIPES
from blockswarm.model.corpus import batches
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import BlockLearner
from tests.lab.conftest import MODEL

PLAN = blocks_plan(MODEL, RECIPES["default"], 6, 0, averaging=Averaging(every=3))


def same(one: Trained, other: Trained) -> bool:
    pairs = zip([*one.thetas, *one.embeddings], [*other.thetas, *other.embeddings], strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_the_same_plan_gives_the_same_weights(text: LabText) -> None:
    assert same(train(PLAN, text), train(PLAN, text))


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"steps": 7}, {"same_batches": True}, {"ema": 0.9}, {"embedding": "own"}, {"embedding": "frozen"}],
    ids=str,
)
def test_every_field_changes_the_outcome_and_the_name(text: LabText, changes: dict[str, Any]) -> None:
    other = replace(PLAN, **changes)
    assert not same(train(PLAN, text), train(other, text))
    assert PLAN.key(text.corpus.digest) != other.key(text.corpus.digest)


def test_a_lone_plain_model_is_what_the_learner_alone_makes(text: LabText) -> None:
    """No round, no average, no rounding: the harness adds nothing to the learner."""
    plan = plain_plan(MODEL, 2, RECIPES["default"], 5, 3)
    learner = BlockLearner(
        plan.model,
        plan.recipe,
        0,
        block_layout(plan.model).genesis(3, 0),
        embedding_layout(plan.model).genesis(3, EMBEDDING),
        batches=batches(text.corpus, 3000, plan.recipe.batch, MODEL.context),
        seed=3000,
        device="cpu",
    )
    for _ in range(5):
        learner.step()
    trained = train(plan, text)
    theta, embedding = learner.read()
    assert np.array_equal(trained.thetas[0], theta)
    assert np.array_equal(trained.embeddings[0], embedding)


def test_blocks_share_one_table_and_end_with_the_mean_of_their_workers(text: LabText) -> None:
    trained = train(replace(PLAN, averaging=Averaging(every=3, replicas=2)), text)
    assert len(trained.thetas) == MODEL.blocks
    assert np.array_equal(trained.embeddings[0], trained.embeddings[1])
    assert trained.bytes_sent > 0


def test_replicas_without_noise_or_loss_are_one_worker_with_their_mean_update(text: LabText) -> None:
    """One local step with a rate so low that the model stays linear: the mean update is the mean of both workers'."""
    plan = replace(PLAN, steps=1, averaging=Averaging(every=1, replicas=2))
    together = train(plan, text).thetas[0]
    genesis = block_layout(MODEL).genesis(0, 0)
    alone = []
    for replica in range(2):
        learner = BlockLearner(
            plan.model,
            plan.recipe,
            0,
            genesis,
            embedding_layout(MODEL).genesis(0, EMBEDDING),
            batches=batches(text.corpus, 100 * replica, plan.recipe.batch, MODEL.context),
            seed=100 * replica,
            device="cpu",
        )
        learner.step()
        alone.append(learner.read()[0] - genesis)
    assert together - genesis == pytest.approx(np.mean(alone, axis=0), abs=1e-6)


def test_int4_loses_nothing_for_good(text: LabText) -> None:
    """What encoding leaves out of an update is carried: after many rounds the mean is near the exact one."""
    exact = replace(PLAN, steps=40, averaging=Averaging(every=2, replicas=2))
    coarse = replace(exact, averaging=replace(exact.averaging, compression="int4"))
    a, b = train(exact, text), train(coarse, text)
    assert b.bytes_sent < a.bytes_sent / 6
    assert b.curve[-1][1] == pytest.approx(a.curve[-1][1], abs=0.1)


def test_nobody_accepted_leaves_the_state_and_keeps_the_work(text: LabText) -> None:
    averaging = Averaging(every=3, replicas=2, participation=0.0)
    trained = train(replace(PLAN, averaging=averaging), text)
    assert np.array_equal(trained.thetas[0], block_layout(MODEL).genesis(0, 0))
    assert trained.curve[-1][1] < trained.curve[0][1], "the workers' live weights go on learning"


def test_a_watch_sees_the_model_as_often_as_the_plan_says(text: LabText) -> None:
    plan = replace(PLAN, watch=1)
    seen = train(plan, text, watch=lambda trained: float(len(trained.thetas))).watched
    assert seen == [(3, 2.0), (6, 2.0)]


def test_a_direct_denoiser_learns_with_its_table_frozen(text: LabText) -> None:
    plan: Plan = replace(PLAN, objective="embedding-mse", embedding="frozen", steps=30)
    trained = train(plan, text)
    assert np.array_equal(trained.embeddings[0], embedding_layout(MODEL).genesis(0, EMBEDDING))
    assert trained.curve[-1][1] < trained.curve[0][1]
