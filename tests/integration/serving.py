"""A swarm that is asked while it trains."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.swarm.manifest import EMBEDDING
from tests.integration.small import PATIENCE, wait_until


@dataclass(frozen=True)
class Served:
    """A swarm of two blocks with two holders each; the last tests kill some of them."""

    swarm: LocalSwarm
    holders: dict[int, list[Node]]

    @property
    def spares(self) -> list[Node]:
        """The second holder of each block."""
        return [nodes[1] for nodes in self.holders.values()]

    @property
    def victims(self) -> list[Node]:
        """The first holder of each block."""
        return [nodes[0] for nodes in self.holders.values()]

    def ask(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line in the swarm's folder, where its peers file lies."""
        return self.swarm.command(*arguments, timeout=PATIENCE, check=check)


def start_served(swarm: LocalSwarm) -> Served:
    """Two holders of each of two blocks, all of which have committed a state together."""
    started = [(block, swarm.start_volunteer(block)) for _ in range(2) for block in range(2)]
    holders: dict[int, list[Node]] = {0: [], 1: []}
    for block, node in started:
        holders[block].append(node)
    # A client takes the states most holders have: until a round of all of them, those are the untrained ones.
    everybody = swarm.volunteers()
    groups = {EMBEDDING: everybody, **holders}
    wait_until(
        lambda: all(agree(nodes, subject) for subject, nodes in groups.items()), "states of all", nodes=everybody
    )
    return Served(swarm, holders)


def agree(nodes: Sequence[Node], subject: int) -> bool:
    """Whether there is a state of ``subject`` that all of ``nodes`` committed."""
    owners: dict[str, set[str]] = {}
    for node in nodes:
        node.poll()
        for event in node.events:
            if event["event"] == "round" and event["subject"] == subject and event["committed"]:
                owners.setdefault(event["digest"], set()).add(node.name)
    return any(len(names) == len(nodes) for names in owners.values())


def newest_round(node: Node) -> int:
    """The newest round of its block that a holder committed; 0 before the first."""
    node.poll()
    rounds = [event for event in node.events if event["event"] == "round" and event["subject"] >= 0]
    return max((int(event["round"]) for event in rounds if event["committed"]), default=0)


def one(lines: list[str]) -> str:
    """The only line there is."""
    assert len(lines) == 1, lines
    return lines[0]


def sessions_kept(node: Node) -> int:
    """Sessions of clients that a holder reported to keep."""
    node.poll()
    return max((event["serving"]["sessions"] for event in node.events if "serving" in event), default=0)
