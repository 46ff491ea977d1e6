"""Rounds of several replicas of one block: they find each other, and one that sends garbage or comes late costs
nobody else anything."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm.manifest import EMBEDDING
from tests.integration.small import (
    PATIENCE,
    Replicas,
    arm,
    next_round,
    next_round_after,
    peer_id,
    peer_ids,
    round_of,
    round_times,
    rounds_of,
    story,
    wait_together,
    wait_until,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def swarm_of_five(start_swarm: Callable[..., LocalSwarm]) -> Replicas:
    """Five volunteers started at the same instant; round 1 begins when they should be up."""
    replicas = Replicas(start_swarm(starts_in=4))
    replicas.start(5)
    return replicas


@pytest.fixture
def replicas(swarm_of_five: Replicas) -> Iterator[Replicas]:
    yield swarm_of_five
    swarm_of_five.check_one_line()


def test_five_replicas_that_start_at_the_same_instant_form_one_group(replicas: Replicas) -> None:
    swarm, nodes = replicas.swarm, replicas.nodes
    up = max(node.wait_event("training", timeout=PATIENCE)["time"] for node in nodes)
    # Where some were not up in time for round 1, they need one round to be seen and to catch up.
    number = 1 if up < round_times(swarm, 1).train_end else 2 + next_round_after(swarm, up)
    for subject in (0, EMBEDDING):
        events = rounds_of(nodes, number, subject)
        assert all(event["committed"] for event in events), story(nodes)
        assert {tuple(event["members"]) for event in events} == {tuple(events[0]["members"])}, story(nodes)
        assert sorted(events[0]["members"]) == peer_ids(nodes)
        assert sorted(events[0]["accepted"]) == peer_ids(nodes)
        assert len({event["digest"] for event in events}) == 1


@pytest.mark.parametrize(
    ("fault", "place", "reason"),
    [
        ("nan", 0, "not finite"),
        ("reshaped", 1, "wrong shape: "),
        ("short", 2, "wrong length: "),
        ("huge", 0, "norm "),
    ],
)
def test_a_replica_that_sends_garbage_is_left_out_by_name(
    replicas: Replicas, fault: str, place: int, reason: str
) -> None:
    nodes = replicas.bring(3)
    # Who has sent garbage before sends something good first, or it would be kept out (`swarm/policy/standing.py`).
    wait_together(nodes, after=next_round(replicas.swarm) - 1)
    number = arm(replicas.swarm, fault, place)
    events = rounds_of(nodes, number)
    members = events[0]["members"]
    assert sorted(members) == peer_ids(nodes), story(nodes)  # those of the round before, its culprit included
    culprit = members[place]
    for event in events:
        assert event["committed"], story(nodes)
        assert event["rejected"].keys() == {culprit}
        assert event["rejected"][culprit].startswith(reason)
        assert sorted(event["accepted"]) == sorted(set(members) - {culprit})
        assert event["digest"] == events[0]["digest"]


def test_a_replica_that_comes_after_the_meeting_sits_one_round_out(replicas: Replicas) -> None:
    nodes = replicas.bring(3)
    late, *punctual = nodes
    number = next_round(replicas.swarm)
    late.kill(signal.SIGSTOP, family=True)
    times = round_times(replicas.swarm, number)
    wait_until(lambda: time.time() > times.meet_end, "end of the meeting")
    late.kill(signal.SIGCONT, family=True)
    events = rounds_of(punctual, number)
    for event in events:
        assert event["committed"], story(nodes)
        assert sorted(event["members"]) == peer_ids(punctual)
        assert event["digest"] == events[0]["digest"]
    missed = round_of(late, number)
    assert not missed["committed"], story(nodes)
    assert "meeting came" in missed["reason"]
    again = wait_together(nodes, after=number)
    taken_over = late.wait_event("state", lambda event: event["subject"] == 0, timeout=PATIENCE)
    assert number <= taken_over["round"] < again
    assert peer_id(late) in round_of(punctual[0], again)["accepted"]
