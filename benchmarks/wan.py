"""Real training over slow lines: three hosts, three blocks, two replicas of each on different hosts.

    sudo -E python -m benchmarks.wan --rounds 8 --modes elastic fixed-20 fixed-60 --json

Hosts are network namespaces on this machine (see `benchmarks/hosts`), training and peers are real. ``elastic`` trains
until the round's training ends, ``fixed-H`` makes H steps a round and waits. All rows of a scenario have one round
length, phases that suit its slowest uplink, the same text and the same seeds, and are measured over ``--rounds`` rounds
from the first one that begins after everybody has begun to train. A host that is away is not counted in rounds that it
was away in, nor in the one it comes back in.

``participation`` is the share of (replica, round) whose update is in a certified average; ``wait_share`` the share of a
replica's time that was not spent in training steps; ``gigabytes`` all IP packets between the hosts, from start to end;
``ce_final`` the cross-entropy of the parallel readout on held-out text, nats per byte, asked over the lines;
``bench_late_share`` the share of packets that the bench handed over more than a millisecond late. Needs root. Processor
time is shared by all hosts: what a row trains depends on the machine, what it loses on the lines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hosts import Link, World, why_not
from benchmarks.machine import machine, settings
from benchmarks.watching import heldout_ce, round_now, wait_for_reports_of
from blockswarm.model.config import SIZES
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.swarm.manifest import Manifest, create_manifest

HOSTS = 3
RATE_MBIT = 20.0
DELAY_MS = 40.0
"""One way: 80 ms of round trip."""

SLOW_MBIT = 5.0
FAR_MS = 150.0
AWAY_ROUNDS = 2

START_SECONDS = 120.0
"""Longest time until everybody trains."""


@dataclass(frozen=True)
class Scenario:
    """Lines, and what happens to them."""

    loss: float = 0.0
    slowest_mbit: float = RATE_MBIT
    """Uplink of host 2."""
    far_ms: float = DELAY_MS
    """Travel time between host 2 and the others, one way."""
    away: bool = False
    """Host 2 is cut off for `AWAY_ROUNDS` rounds in the middle."""


SCENARIOS = {
    "wan": Scenario(),
    "wan-loss": Scenario(loss=0.01),
    "slow-host": Scenario(slowest_mbit=SLOW_MBIT),
    "far-host": Scenario(far_ms=FAR_MS),
    "away": Scenario(away=True),
}


@dataclass
class Tally:
    """What the replicas reported of the rounds that count."""

    expected: int = 0
    accepted: int = 0
    waiting: list[float] = field(default_factory=list)

    @property
    def participation(self) -> float:
        """Accepted share of the updates expected."""
        return self.accepted / self.expected if self.expected else 0.0

    @property
    def wait_share(self) -> float:
        """Mean share of the time that was not spent in steps."""
        return sum(self.waiting) / len(self.waiting) if self.waiting else 1.0


def manifest_of(scenario: Scenario, mode: str, round_seconds: float, data: str) -> Manifest:
    """The swarm of one row."""
    return create_manifest(
        name="wan",
        now=time.time(),
        size=SIZES["tiny"],
        data=data,
        round_seconds=round_seconds,
        bandwidth=0.75 * min(RATE_MBIT, scenario.slowest_mbit) * 1e6 / 8,  # a quarter goes into headers and other calls
        local_steps="elastic" if mode == "elastic" else int(mode.removeprefix("fixed-")),
    )


def build(scenario: Scenario) -> World:
    """Its hosts and lines."""
    line = Link(delay_ms=DELAY_MS, loss=scenario.loss)
    world = World.build(HOSTS, link=line, uplink=Link(rate_mbit=RATE_MBIT), downlink=Link(rate_mbit=RATE_MBIT), seed=1)
    world.set_uplink(2, Link(rate_mbit=scenario.slowest_mbit))
    for other in (0, 1):
        world.set_link(2, other, Link(delay_ms=scenario.far_ms, loss=scenario.loss))
    return world


class Row:
    """One run: a scenario in a mode."""

    def __init__(self, world: World, swarm: LocalSwarm, scenario: Scenario) -> None:
        self.world, self.swarm, self.scenario = world, swarm, scenario
        self.nodes: list[tuple[Node, int]] = []
        """Volunteers and their hosts."""

    def start(self) -> int:
        """Start everybody; the first round that begins once all train."""
        self.swarm.start_bootstrap(listen=self.world[0].listen, launch=self.world[0].popen, wait=START_SECONDS)
        for block in range(self.swarm.manifest.model.blocks):
            for place in (block % HOSTS, (block + 1) % HOSTS):
                host = self.world[place]
                node = self.swarm.start_volunteer(block, listen=host.listen, launch=host.popen)
                self.nodes.append((node, place))
        deadline = time.monotonic() + START_SECONDS
        for node, _ in self.nodes:
            node.wait_event("training", timeout=max(1.0, deadline - time.monotonic()))
        return round_now(self.swarm) + 1

    def measure(self, first: int, rounds: int, told: Callable[[str], None]) -> Tally:
        """Let rounds pass; what was reported of them."""
        tally = Tally()
        leaves = first + rounds // 2 if self.scenario.away else None
        gone: range = range(0)
        for number in range(first, first + rounds):
            if number == leaves:
                self.world.cut_off(2)
                gone = range(number, number + AWAY_ROUNDS + 1)
            elif gone and number == gone.stop - 1:
                self.world.heal(2)
            wait_for_reports_of(self.swarm, number)
            for node, place in self.nodes:
                if not (number in gone and place == 2):
                    self._count(tally, node, number)
            told(f"round {number - first + 1} of {rounds}: participation {tally.participation:.2f}")
        return tally

    def _count(self, tally: Tally, node: Node, number: int) -> None:
        report = node.find("round", lambda event: event["round"] == number and event["subject"] >= 0)
        tally.expected += 1
        if report is not None:
            tally.accepted += report["committed"] and report["own_accepted"]
            tally.waiting.append(1.0 - report["busy_share"])

    def gigabytes(self) -> float:
        """Sent between hosts so far."""
        return sum(each.sent_bytes for each in self.world.traffic().values()) / 1e9


def run(name: str, mode: str, rounds: int, round_seconds: float, data: str, seed: int) -> dict[str, Any]:
    """One row of the table."""

    def told(words: str) -> None:
        print(f"{name} {mode}: {words}", file=sys.stderr, flush=True)

    scenario = SCENARIOS[name]
    with (
        build(scenario) as world,
        LocalSwarm(manifest=manifest_of(scenario, mode, round_seconds, data), seed=seed) as swarm,
    ):
        row = Row(world, swarm, scenario)
        tally = row.measure(row.start(), rounds, told)
        moved = row.gigabytes()
        late = world.lateness()
        return {
            "scenario": name,
            "mode": mode,
            "participation": round(tally.participation, 4),
            "wait_share": round(tally.wait_share, 4),
            "ce_final": round(heldout_ce(swarm, world[0].popen), 4),
            "gigabytes": round(moved, 4),
            "bench_late_share": round(late.late / max(1, late.packets), 4),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    top.add_argument("--modes", nargs="+", default=["elastic", "fixed-20", "fixed-60"], help="elastic, fixed-H")
    top.add_argument("--rounds", type=int, default=8, help="measured, after everybody trains (default 8)")
    top.add_argument("--round-seconds", type=float, default=20.0)
    top.add_argument("--data", default="docs")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--json", action="store_true", help="print one JSON object last")
    options = top.parse_args(arguments)
    for mode in options.modes:
        if mode != "elastic" and not mode.removeprefix("fixed-").isdecimal():
            top.error(f"mode {mode!r}: must be elastic or fixed-<steps>")
    if (reason := why_not()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    rows = []
    for name in options.scenarios:
        for mode in options.modes:
            rows.append(run(name, mode, options.rounds, options.round_seconds, options.data, options.seed))
            if not options.json:
                print(rows[-1], flush=True)
    if options.json:
        print(json.dumps({"rows": rows, "settings": settings(options), "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
