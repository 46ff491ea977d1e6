"""Training ends when a block has the samples that the manifest asks for; its holders go on serving."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm import SwarmClient
from tests.integration.small import PATIENCE, next_round, story, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SAMPLES = 300


def test_when_training_has_ended_all_hold_one_state_and_serve_it(start_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = start_swarm(train_samples=SAMPLES)
    nodes = [swarm.start_volunteer(0) for _ in range(2)]
    ends = [node.wait_event("trained", timeout=PATIENCE) for node in nodes]
    assert ends[0]["round"] == ends[1]["round"] and ends[0]["samples"] == ends[1]["samples"] >= SAMPLES, story(nodes)

    newcomer = swarm.start_volunteer(0)
    end = newcomer.wait_event("trained", timeout=PATIENCE)
    assert (end["round"], end["samples"]) == (ends[0]["round"], ends[0]["samples"]), story([newcomer])

    nodes.append(newcomer)
    with SwarmClient.connect(swarm.peers_file, timeout=60) as client:

        def all_serve() -> bool:
            return [holder.state for holder in client.holders()[0]] == ["SERVING"] * len(nodes)

        wait_until(all_serve, "holders that only serve", nodes=nodes)
        assert client.generate("The ", max_bytes=8, seed=1)
    wait_until(lambda: next_round(swarm) > ends[0]["round"] + 1, "round after the end", nodes=nodes)
    for node in nodes:
        node.poll()
        assert not [event for event in node.events if event["event"] == "round" and event["round"] > ends[0]["round"]]
