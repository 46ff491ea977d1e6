"""A volunteer that is alone trains as if there were no swarm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockswarm.model.corpus import batches, heldout_windows, open_corpus
from blockswarm.model.learner import BlockLearner
from blockswarm.peer.checkpoint import CheckpointFolder
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import EMBEDDING
from tests.integration.small import PATIENCE, story

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_lone_replica_learns_as_plain_training_does(start_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = start_swarm(local_steps=60)
    node = swarm.start_volunteer(0, "--rounds", "3", "--seed", "5")
    assert node.wait_ended(PATIENCE) == 0
    rounds = [event for event in node.events if event["event"] == "round"]
    assert len(rounds) == 6, story([node])
    assert all(event["committed"] and event["lone"] for event in rounds), story([node])

    manifest = swarm.manifest
    checkpoint = CheckpointFolder(swarm.folder / node.name).load_newest(manifest).checkpoint
    assert checkpoint is not None
    corpus = open_corpus("docs", context=manifest.model.context)
    plain = BlockLearner(
        manifest.model,
        manifest.recipe,
        0,
        State.genesis(manifest, 0).values,
        State.genesis(manifest, EMBEDDING).values,
        batches=batches(corpus, 5, manifest.recipe.batch, manifest.model.context),
        seed=5,
        device="cpu",
        threads=1,
    )
    windows = heldout_windows(corpus, manifest.model.context, 256)
    untrained = plain.evaluate(windows)
    steps, rest = divmod(checkpoint.block.samples, manifest.recipe.batch)
    assert steps >= 100 and rest == 0
    for _ in range(steps):
        plain.step()
    expected = plain.evaluate(windows)
    assert expected < untrained - 0.5
    # Nothing travels, so nothing is encoded: what rounds add is the rounding of sums.
    plain.load(checkpoint.block.values, checkpoint.embedding.values)
    assert plain.evaluate(windows) == pytest.approx(expected, abs=1e-3)
