"""A replica dies or stops while a round is averaged: those left hold one state, in time, and lose nothing.

One swarm serves all tests. Each goes on with the replicas that the one before has left, if they are what it needs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

import psutil
import pytest

from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.peer.wording import Event
from blockswarm.swarm.manifest import EMBEDDING
from tests.integration.small import (
    FAULTY,
    PATIENCE,
    Replicas,
    arm,
    next_round,
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
def trio(start_swarm: Callable[..., LocalSwarm]) -> Replicas:
    replicas = Replicas(start_swarm(starts_in=2))
    replicas.start(3)
    return replicas


@pytest.fixture
def replicas(trio: Replicas) -> Iterator[Replicas]:
    yield trio
    trio.check_one_line()


def check_committed_in_time(replicas: Replicas, survivors: Sequence[Node], number: int) -> None:
    """The survivors of a round of three hold one new state, at most two seconds after the round's close."""
    deadline = round_times(replicas.swarm, number).close + 2.0
    for subject in (0, EMBEDDING):
        events = rounds_of(survivors, number, subject)
        for event in events:
            assert len(event["members"]) == 3, story(replicas.nodes)
            assert event["committed"] and not event["lone"], story(replicas.nodes)
            assert event["digest"] == events[0]["digest"] != event["parent"]
            assert event["time"] < deadline, story(replicas.nodes)


def states_of(node: Node, subject: int = 0) -> list[Event]:
    """The states a volunteer has fetched so far."""
    node.poll()
    return [event for event in node.events if event["event"] == "state" and event["subject"] == subject]


def struck(nodes: Sequence[Node]) -> Node | None:
    """The one that has ended or is stopped, if there is one."""
    for node in nodes:
        if not node.running or psutil.Process(node.process.pid).status() == psutil.STATUS_STOPPED:
            return node
    return None


def strike_one_of_three(replicas: Replicas, fault: str, place: int, at: str) -> tuple[Node, list[Node], int]:
    """Bring three replicas and let one of them be hit in a round; it, the others, and the round."""
    nodes = replicas.bring(3)
    number = arm(replicas.swarm, fault, place, at=at)
    victim = wait_until(lambda: struck(nodes), f"{fault} at {at}")
    replicas.nodes.remove(victim)
    return victim, list(replicas.nodes), number


@pytest.mark.parametrize(("place", "at"), [(0, "round.part"), (2, "round.result")])
def test_when_one_of_three_is_killed_the_others_commit_one_state_in_time(
    replicas: Replicas, place: int, at: str
) -> None:
    victim, survivors, number = strike_one_of_three(replicas, "SIGKILL", place, at)
    assert victim.process.returncode == -signal.SIGKILL
    check_committed_in_time(replicas, survivors, number)


def stop_one_of_three(replicas: Replicas) -> None:
    """Stop the leader when one of the others has its outcome and one has not; it stays stopped, its daemon too."""
    stopped, others, number = strike_one_of_three(replicas, "SIGSTOP", 0, "round.outcome")
    check_committed_in_time(replicas, others, number)
    stopped.kill(signal.SIGSTOP, family=True)
    replicas.asleep = (stopped, number)


def test_when_one_of_three_is_stopped_the_others_commit_one_state_in_time(replicas: Replicas) -> None:
    stop_one_of_three(replicas)


def test_a_newcomer_takes_over_the_state_and_is_in_the_next_round(replicas: Replicas) -> None:
    others = replicas.bring(2)
    replicas.start(1)
    nodes = replicas.nodes
    newcomer = nodes[-1]
    again = wait_together(nodes)
    taken = [event for event in states_of(newcomer) if event["round"] < again][-1]
    reports = [event for event in newcomer.events if event["event"] == "round" and event["subject"] == 0]
    first = next(event for event in reports if event["time"] > taken["time"])
    assert first["committed"], story(nodes)
    assert first["parent"] == taken["digest"]
    for event in rounds_of(others, first["round"]):
        assert sorted(event["members"]) == sorted(event["accepted"]) == peer_ids(nodes), story(nodes)
        assert event["digest"] == first["digest"]


def test_a_stopped_replica_that_is_continued_catches_up_and_commits_nothing_stale(replicas: Replicas) -> None:
    if replicas.asleep is None:
        stop_one_of_three(replicas)
    assert replicas.asleep is not None
    (stopped, number), replicas.asleep = replicas.asleep, None
    others = list(replicas.nodes)
    newest = max(number + 3, next_round(replicas.swarm))
    for event in rounds_of(others, newest):  # long after, those left go on without waiting for it
        assert event["committed"] and sorted(event["members"]) == peer_ids(others), story(others)
    stopped.kill(signal.SIGCONT, family=True)
    replicas.nodes.append(stopped)
    again = wait_together(replicas.nodes, after=newest)
    assert newest <= states_of(stopped)[-1]["round"] < again
    reports = [event for event in stopped.events if event["event"] == "round"]
    stale = [event for event in reports if number < event["round"] <= newest and event["committed"]]
    assert not stale, story(replicas.nodes)


def test_the_survivor_of_two_carries_its_work_and_goes_on_alone(replicas: Replicas) -> None:
    nodes = replicas.bring(2)
    number = arm(replicas.swarm, "SIGKILL", 0, at="scatter")
    victim = wait_until(lambda: struck(nodes), "death of a replica")
    survivor = next(node for node in nodes if node is not victim)
    before, failed, alone = (round_of(survivor, n) for n in (number - 1, number, number + 1))
    assert sorted(failed["members"]) == peer_ids(nodes)
    assert not failed["committed"], story(nodes)
    assert failed["digest"] == failed["parent"] == before["digest"]
    assert alone["committed"] and alone["lone"], story(nodes)
    assert alone["members"] == alone["accepted"] == [peer_id(survivor)]
    assert alone["parent"] == before["digest"] != alone["digest"]
    assert alone["samples"] > failed["samples"]
    assert alone["certified_samples"] == before["certified_samples"] + alone["samples"]


def test_a_killed_volunteer_that_is_started_again_is_the_same_peer_and_catches_up(replicas: Replicas) -> None:
    swarm, nodes = replicas.swarm, replicas.nodes
    if len(nodes) != 2 or struck(nodes) is None:
        nodes = replicas.bring(2)
        nodes[0].kill(signal.SIGKILL)
        nodes[0].wait_ended(PATIENCE)
    victim = wait_until(lambda: struck(nodes), "death of a replica")
    survivor = next(node for node in nodes if node is not victim)
    missed = next_round(swarm)
    assert round_of(survivor, missed)["committed"], story(nodes)
    again = swarm.start_volunteer(0, name=victim.name, program=FAULTY)
    replicas.nodes = [survivor, again]
    assert peer_id(again) == peer_id(victim)
    together = wait_together(replicas.nodes, after=missed)
    assert missed <= states_of(again)[-1]["round"] < together


def test_a_swarm_that_is_stopped_and_started_again_goes_on_where_it_was(replicas: Replicas) -> None:
    swarm, nodes = replicas.swarm, replicas.bring(2)
    last = wait_together(nodes, after=next_round(swarm) - 1)
    before = {subject: round_of(nodes[0], last, subject) for subject in (0, EMBEDDING)}
    assert swarm.stop_all(timeout=PATIENCE) == []
    swarm.start_bootstrap(wait=PATIENCE)
    replicas.nodes = [swarm.start_volunteer(0, name=node.name, program=FAULTY) for node in nodes]
    assert peer_ids(replicas.nodes) == peer_ids(nodes)
    wait_together(replicas.nodes)
    for subject in (0, EMBEDDING):
        reports = [
            event
            for node in replicas.nodes
            for event in node.events
            if event["event"] == "round" and event["subject"] == subject and event["committed"]
        ]
        first = min(reports, key=lambda event: event["round"])
        assert first["parent"] == before[subject]["digest"], story(replicas.nodes)
        assert first["certified_samples"] > before[subject]["certified_samples"]
        for node in replicas.nodes:  # nobody fetched what it had; who came a round later may have fetched that one
            assert all(event["round"] > last for event in states_of(node, subject)), story(replicas.nodes)
