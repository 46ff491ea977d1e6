"""No node is needed for ever: the swarm goes on without its bootstrap node, and newcomers find other ways in."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from blockswarm.dht.identity import Identity
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.peer.view import RECORD_SECONDS
from tests.integration.clients import Client, connected
from tests.integration.small import PATIENCE, next_round, peer_ids, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]


@dataclass(frozen=True)
class Orphans:
    """A swarm of two volunteers whose only bootstrap node was killed after they had found each other."""

    swarm: LocalSwarm
    first: Node
    second: Node
    newcomer: Node
    """Knows the address of ``second`` only; started when the bootstrap node was gone."""
    since: float
    """Unix seconds when it was killed."""
    client: Client
    """Connected while the bootstrap node was there, and knows nobody else by name."""


@pytest.fixture(scope="module")
def orphans(start_swarm: Callable[..., LocalSwarm]) -> Iterator[Orphans]:
    swarm = start_swarm()
    first, second = swarm.start_volunteer(0), swarm.start_volunteer(0)
    wait_for_a_group([first, second])
    with connected(swarm) as client:
        (bootstrap,) = (node for node in swarm.nodes if node.name == "bootstrap-1")
        bootstrap.kill(signal.SIGKILL)
        bootstrap.wait_ended(timeout=PATIENCE)
        since = time.time()
        peers_file = swarm.folder / "one_volunteer.txt"
        peers_file.write_text(f"{address_of(second)}\n")
        newcomer = swarm.start_volunteer(None, "--peers-file", str(peers_file))
        yield Orphans(swarm, first, second, newcomer, since, client)


def wait_for_a_group(nodes: Sequence[Node], *, after: int = 0) -> int:
    """The first round past ``after`` that all ``nodes`` committed in one group, maybe with others."""
    ids = set(peer_ids(nodes))

    def common() -> int | None:
        rounds: dict[int, set[str]] = {}
        for node in nodes:
            node.poll()
            for event in node.events:
                if event["event"] != "round" or event["subject"] != 0 or event["round"] <= after:
                    continue
                if event["committed"] and ids <= set(event["members"]):
                    rounds.setdefault(event["round"], set()).add(node.name)
        return next((number for number, names in sorted(rounds.items()) if len(names) == len(nodes)), None)

    return int(wait_until(common, "round in one group", nodes=nodes))


def address_of(node: Node) -> str:
    """Where others reach it."""
    return str(node.wait_event("ready", timeout=PATIENCE)["addrs"][0])


def free_port() -> int:
    """A port that nothing listens on, outside the range from which the kernel serves those who ask for any port."""
    for port in range(21000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def test_training_goes_on(orphans: Orphans) -> None:
    wait_for_a_group([orphans.first, orphans.second], after=next_round(orphans.swarm))


def test_a_client_that_was_there_before_goes_on(orphans: Orphans) -> None:
    text = orphans.client.do("generate", prompt="The ", max_bytes=20, seed=1)
    assert text.error is None, text.text
    assert text.last["bytes"] == 20


def test_a_newcomer_joins_through_any_volunteer(orphans: Orphans) -> None:
    ready = orphans.newcomer.wait_event("ready", timeout=PATIENCE)
    assert ready["run_id"] == orphans.swarm.manifest.run_id
    assert orphans.newcomer.find("state") is not None  # it went on from where the others are
    wait_for_a_group([orphans.first, orphans.second, orphans.newcomer])


def test_a_restarted_volunteer_finds_the_peers_it_met_before(orphans: Orphans) -> None:
    swarm, first = orphans.swarm, orphans.first
    first.kill(signal.SIGINT)
    assert first.wait_ended(timeout=PATIENCE) == 0
    again = swarm.start_volunteer(0, name=first.name)  # its peers file knows the dead bootstrap node only
    assert peer_ids([again]) == peer_ids([first])
    wait_for_a_group([again, orphans.second])


def test_a_new_client_comes_in_when_the_bootstrap_node_is_long_gone(
    orphans: Orphans,
) -> None:
    # What the bootstrap node said of the run is still on record for a while.
    time.sleep(max(0.0, orphans.since + RECORD_SECONDS - time.time()))
    options = ("--peer", address_of(orphans.second), "--max-bytes", "20", "--seed", "1", "--json")
    answer = json.loads(orphans.swarm.command("generate", "The ", *options, timeout=PATIENCE).stdout)
    assert answer["run_id"] == orphans.swarm.manifest.run_id
    assert answer["bytes"] == 20
    assert answer["missing"] == []


def test_a_volunteer_waits_for_a_bootstrap_node_to_come_up(orphans: Orphans) -> None:
    swarm = orphans.swarm
    key = swarm.folder / "new_bootstrap.key"
    peer_id, listen = Identity.create(key).peer_id, f"/ip4/127.0.0.1/tcp/{free_port()}"
    peers_file = swarm.folder / "new_bootstrap.txt"
    peers_file.write_text(f"{listen}/p2p/{peer_id}\n")
    early = swarm.start_volunteer(0, "--peers-file", str(peers_file))
    refused = early.wait_event("warning", lambda event: listen in event["message"], timeout=PATIENCE)
    assert "refused; trying again" in refused["message"]

    swarm.start_bootstrap("--identity", str(key), "--peer", address_of(orphans.second), listen=listen, wait=PATIENCE)
    wait_for_a_group([early, orphans.second])
