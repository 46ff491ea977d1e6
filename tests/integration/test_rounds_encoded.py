"""A swarm that sends int4, steps with outer momentum and trims its mean: newcomers and returning volunteers fit in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockswarm.peer.checkpoint import CheckpointFolder
from blockswarm.peer.local import LocalSwarm
from tests.integration.small import PATIENCE, Replicas, peer_id, round_of, rounds_of, story, wait_together

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def replicas(start_swarm: Callable[..., LocalSwarm]) -> Replicas:
    replicas = Replicas(start_swarm(compression="int4", outer="nesterov", robust="trimmed"))
    replicas.start(2)
    return replicas


def test_replicas_commit_one_state_and_send_a_seventh_of_the_bytes(replicas: Replicas) -> None:
    number = wait_together(replicas.nodes)
    for event in rounds_of(replicas.nodes, number):
        assert event["bytes_sent"] > 0
        assert event["bytes_sent"] <= (event["bytes_sent"] + event["bytes_saved"]) / 7, story(replicas.nodes)
    replicas.check_one_line()


def test_a_newcomer_fetches_the_momentum_too_and_votes_for_the_same_digest(replicas: Replicas) -> None:
    before = wait_together(replicas.nodes)
    replicas.start(1)
    number = wait_together(replicas.nodes, after=before)
    newcomer = replicas.nodes[-1]
    taken_over = newcomer.wait_event("state", lambda event: event["subject"] == 0, timeout=PATIENCE)
    assert 0 < taken_over["round"] < number, story(replicas.nodes)
    assert peer_id(newcomer) in round_of(replicas.nodes[0], number)["accepted"]
    replicas.check_one_line()


def test_a_volunteer_that_returns_goes_on_from_its_checkpoint(replicas: Replicas) -> None:
    before = wait_together(replicas.nodes)
    leaving = replicas.nodes[-1]
    replicas.stop(leaving)
    resumed = CheckpointFolder(replicas.swarm.folder / leaving.name).load_newest(replicas.swarm.manifest)
    assert resumed.skipped == () and resumed.checkpoint is not None
    assert resumed.checkpoint.block.momentum is not None and resumed.checkpoint.block.momentum.any()
    assert resumed.checkpoint.block.round >= before
    replicas.nodes.append(replicas.swarm.start_volunteer(0, name=leaving.name))
    assert wait_together(replicas.nodes, after=before) > before
    replicas.check_one_line()
