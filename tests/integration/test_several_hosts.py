"""A swarm whose peers are on different hosts, 80 ms of round trip and 20 Mbit/s apart."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from benchmarks.hosts import Link, World, why_not
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from tests.integration.small import PATIENCE, peer_ids, rounds_of, story, wait_together

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]


@dataclass(frozen=True)
class Spread:
    """A bootstrap node on host 0, a volunteer on each of the others."""

    world: World
    swarm: LocalSwarm
    volunteers: list[Node]
    together: int
    """The first round that both committed with the work of both in it."""


@pytest.fixture(scope="module")
def spread(start_swarm: Callable[..., LocalSwarm]) -> Iterator[Spread]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with World.build(3, link=Link(delay_ms=40, rate_mbit=20), seed=1) as world:
        swarm = start_swarm(slower=1.6, listen=world[0].listen, launch=world[0].popen)
        volunteers = [swarm.start_volunteer(0, listen=host.listen, launch=host.popen) for host in world.hosts[1:]]
        yield Spread(world, swarm, volunteers, first_full_round(volunteers))
        assert swarm.stop_all() == []


def first_full_round(nodes: list[Node]) -> int:
    deadline = time.monotonic() + PATIENCE
    number = 0
    while True:
        number = wait_together(nodes, after=number)
        if all(len(event["accepted"]) == len(nodes) for event in rounds_of(nodes, number)):
            return number
        assert time.monotonic() < deadline, f"no round with the work of all within {PATIENCE:g} s\n{story(nodes)}"


def test_peers_on_different_hosts_find_each_other_and_commit_a_round(spread: Spread) -> None:
    for host, node in zip(spread.world.hosts[1:], spread.volunteers, strict=True):
        (address,) = node.wait_event("ready", timeout=PATIENCE)["addrs"]
        assert address.startswith(f"/ip4/{host.address}/tcp/")
    first, second = rounds_of(spread.volunteers, spread.together)
    assert first["digest"] == second["digest"]
    assert sorted(first["accepted"]) == sorted(first["members"]) == peer_ids(spread.volunteers)


def test_what_they_sent_went_over_the_lines(spread: Spread) -> None:
    traffic = spread.world.traffic()
    moved = sum(event["bytes_sent"] for event in rounds_of(spread.volunteers, spread.together))
    between = traffic[1, 2].delivered_bytes + traffic[2, 1].delivered_bytes
    assert between > moved > 0
    assert all(traffic[0, number].delivered and traffic[number, 0].delivered for number in (1, 2))
    assert not any(counts.lost or counts.cut for counts in traffic.values())


def test_a_client_on_another_host_is_served(spread: Spread) -> None:
    options = ("--peers-file", str(spread.swarm.peers_file), "--max-bytes", "8", "--seed", "1", "--json")
    done = spread.swarm.command("generate", "The ", *options, timeout=PATIENCE, launch=spread.world[0].popen)
    assert json.loads(done.stdout)["bytes"] == 8
