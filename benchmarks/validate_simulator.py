"""The same swarm for real and simulated: a slow line, somebody leaving, six volunteers.

    sudo -E python -m benchmarks.validate_simulator --rounds 10 --scenarios slow-line two-slow --json

Real volunteers train on hosts of their own (network namespaces on this machine, see `benchmarks/hosts`). Afterwards
``simulate swarm`` runs the same rounds of the same manifest with the same peer ids (so the same leaders), lines and
departure, and what came of the rounds is printed side by side. Volunteers make few local steps of a small model, so
that processors idle and lines decide. Rounds count from the first one that begins after everybody has begun to train;
the one in which somebody leaves does not.

``participation`` is accepted updates ÷ replicas that were there; ``round_s`` the mean time from the end of training to
the commit, over committed rounds of blocks; ``bytes`` what all volunteers received of others' updates and means,
by their own reports; ``wire_bytes`` all IP packets that they sent, in the simulation all purposes together.
A scenario passes with participation within .05, and ``round_s`` and ``bytes`` within 15 %. ``bench_late_share`` is the
share of packets that the bench handed over more than a millisecond late: on a busy machine the real half is slower
than its lines. Needs root.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import Link, World, why_not
from benchmarks.machine import machine, settings
from benchmarks.watching import round_now, wait_for_reports_of
from blockswarm.model.config import ModelConfig
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.scenario import read_scenario
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation

MODEL = ModelConfig(dim=64, blocks=2, layers=2, heads=2, context=64, ngram_tables=2, ngram_rows=4096, ngram_width=8)
LOCAL_STEPS = 2
REPLICAS = 3
"""Of each block."""

RATE_MBIT = 20.0
DELAY_MS = 40.0
"""One way."""

SLOW_MBIT = 1.0
"""Uplink on which no update is in time."""

QUEUE_SECONDS = 0.1
"""Of the slow uplink. A longer one also delays what its owner downloads and says (docs/simulator.md)."""

START_SECONDS = 150.0
"""Longest time until everybody trains."""

WITHIN = {"participation": 0.05, "round_s": 0.15, "bytes": 0.15}
"""Largest difference that passes: of participation itself, of the others as a share of the real figure."""

DIFFERENCES = (
    "TCP's slow start, Python, hashing and a busy machine make real rounds longer; the simulation has none of them",
    "a part cut off at its deadline has moved bytes that nobody reports; the simulation counts them",
    "on the wire there are headers, acknowledgements and the directory's own chatter; the simulation has less of them",
    "what a member says while it still sends may arrive in time or not; in the simulation it never does",
)
"""Why the two halves are not the same."""


@dataclass(frozen=True)
class Scenario:
    """Which volunteers have a slow uplink, and who leaves halfway; by number, of block ``number % blocks``."""

    slow: tuple[int, ...]
    leaves: int


SCENARIOS = {"slow-line": Scenario(slow=(4,), leaves=5), "two-slow": Scenario(slow=(4, 5), leaves=2)}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What came of the rounds that count."""

    participation: float
    round_s: float
    bytes: float
    wire_bytes: float
    commits: int


def manifest_of(round_seconds: float) -> Manifest:
    """The swarm of a scenario: uncompressed updates, so that lines matter."""
    return create_manifest(
        name="validate",
        now=time.time(),
        size=MODEL,
        round_seconds=round_seconds,
        bandwidth=0.75 * RATE_MBIT * 1e6 / 8,
        local_steps=LOCAL_STEPS,
        compression="none",
    )


class Real:
    """A scenario on hosts."""

    def __init__(self, world: World, swarm: LocalSwarm, scenario: Scenario) -> None:
        self.world, self.swarm, self.scenario = world, swarm, scenario
        self.nodes: list[Node] = []
        self.ids: list[str] = []
        self.blocks: list[int] = []

    def start(self) -> int:
        """Start everybody; the first round that begins once all train."""
        manifest = self.swarm.manifest
        self.swarm.start_bootstrap(listen=self.world[0].listen, launch=self.world[0].popen, wait=START_SECONDS)
        for number in range(REPLICAS * manifest.model.blocks):
            host, block = self.world[number + 1], number % manifest.model.blocks
            self.nodes.append(self.swarm.start_volunteer(block, listen=host.listen, launch=host.popen))
            self.blocks.append(block)
        deadline = time.monotonic() + START_SECONDS
        for node in self.nodes:
            self.ids.append(node.wait_event("ready", timeout=max(1.0, deadline - time.monotonic()))["peer_id"])
        for node in self.nodes:
            node.wait_event("training", timeout=max(1.0, deadline - time.monotonic()))
        return round_now(self.swarm) + 1

    def wait_until(self, moment: float) -> None:
        """Until ``moment``, seconds since the genesis."""
        time.sleep(max(0.0, self.swarm.manifest.genesis_time + moment - time.time()))

    def measure(self, first: int, rounds: int) -> tuple[Figures, int, float]:
        """Let rounds pass; what came of them, the round in which somebody left, and when, seconds since the genesis."""
        seconds = self.swarm.manifest.rounds.seconds
        middle = first + rounds // 2
        self.wait_until((first - 1) * seconds)
        before = self._sent()
        self.wait_until((middle - 1) * seconds + 0.5)
        self.nodes[self.scenario.leaves].kill(signal.SIGINT)
        left = time.time() - self.swarm.manifest.genesis_time
        last = first + rounds - 1
        self.wait_until(last * seconds)
        wire = self._sent() - before
        wait_for_reports_of(self.swarm, last)
        counted = [number for number in range(first, first + rounds) if number != middle]
        for node in self.nodes:
            node.poll()
        there = {number: self._present(number, middle) for number in counted}
        return self._figures(there, wire), middle, left

    def _present(self, number: int, middle: int) -> list[int]:
        return [v for v in range(len(self.nodes)) if number < middle or v != self.scenario.leaves]

    def _figures(self, there: dict[int, list[int]], wire: float) -> Figures:
        expected = accepted = 0
        lasted: list[float] = []
        received = 0.0
        for number, volunteers in there.items():
            reports = [
                (self.blocks[v], event)
                for v in volunteers
                for event in self.nodes[v].events
                if event.get("event") == "round" and event.get("round") == number
            ]
            received += sum(event["bytes_received"] for _, event in reports)
            expected += len(volunteers)
            for block in set(self.blocks):
                certified = [e for b, e in reports if b == block and e["subject"] == block and e["committed"]]
                if certified:
                    accepted += max(len(event["accepted"]) for event in certified)
                    lasted.append(statistics.median(sum(event["phases_ms"].values()) / 1000 for event in certified))
        return Figures(
            participation=accepted / expected,
            round_s=statistics.fmean(lasted) if lasted else 0.0,
            bytes=received,
            wire_bytes=wire,
            commits=len(lasted),
        )

    def speed(self) -> float:
        """Samples per second of a volunteer that trains without a pause, median."""
        rates = [
            event["samples_per_s"] / max(event["busy_share"], 1e-3)
            for node in self.nodes
            for event in node.events
            if event.get("event") == "round" and event["subject"] != EMBEDDING and event["samples_per_s"]
        ]
        return statistics.median(rates) if rates else 100.0

    def _sent(self) -> float:
        traffic = self.world.traffic()
        return float(sum(counts.sent_bytes for (source, _), counts in traffic.items() if source > 0))


def simulate(real: Real, first: int, rounds: int, middle: int, left: float) -> Figures:
    """The same rounds of the same swarm in ``simulate swarm``."""
    manifest = real.swarm.manifest
    speed = real.speed()
    volunteers: list[dict[str, Any]] = [
        {
            "peer_id": peer_id,
            "block": block,
            "up_mbit": SLOW_MBIT if number in real.scenario.slow else RATE_MBIT,
            "down_mbit": RATE_MBIT,
            "rtt_ms": 2 * DELAY_MS,
            "samples_per_second": speed,
            "hidden": False,
        }
        for number, (peer_id, block) in enumerate(zip(real.ids, real.blocks, strict=True))
    ]
    volunteers[real.scenario.leaves] |= {"leaves_minutes": left / 60, "goodbye": True}
    scenario = read_scenario(
        {
            "name": "validate",
            "sessions": {"endless": True},
            "nat": {"share": 0.0},
            "network": {"rtt_ms": {"median": 2 * DELAY_MS}},
            "clients": {"per_peer_hour": 0.0},
            "volunteers": volunteers,
        }
    )
    last = first + rounds - 1
    hours = last * manifest.rounds.seconds / 3600
    simulation = Simulation(SwarmShape.of(manifest), scenario, peers=len(volunteers), hours=hours)
    simulation.done = first - 1  # everybody has the newest state as the first round begins, as those who have just come
    tally, peers = simulation.tally, simulation.world.peers
    averaging = PURPOSES.index("averaging")
    marks: dict[int, tuple[int, int, int, float, float]] = {}

    def mark(done: int) -> None:
        received = float(peers.received[:, averaging].sum())
        marks[done] = (tally.accepted, tally.eligible, len(tally.round_seconds), received, float(peers.sent.sum()))

    mark(first - 1)
    for done in simulation.run():
        mark(done)
    accepted = eligible = 0
    received = 0.0
    lasted: list[float] = []
    for number in range(first, last + 1):
        if number != middle:
            before, after = marks[number - 1], marks[number]
            accepted += after[0] - before[0]
            eligible += after[1] - before[1]
            lasted += tally.round_seconds[before[2] : after[2]]
            received += after[3] - before[3]
    return Figures(
        participation=accepted / max(1, eligible),
        round_s=statistics.fmean(lasted) if lasted else 0.0,
        bytes=received,
        wire_bytes=marks[last][4] - marks[first - 1][4],
        commits=len(lasted),
    )


def compare(real: Figures, simulated: Figures) -> dict[str, Any]:
    """Both side by side, how far apart, and whether within bounds."""
    rows: dict[str, Any] = {}
    for name in ("participation", "round_s", "bytes", "wire_bytes", "commits"):
        mine, theirs = float(getattr(real, name)), float(getattr(simulated, name))
        apart = abs(mine - theirs) if name == "participation" else abs(mine - theirs) / max(mine, 1e-9)
        rows[name] = {"real": round(mine, 4), "simulated": round(theirs, 4), "difference": round(apart, 4)}
        if name in WITHIN:
            rows[name]["within"] = apart <= WITHIN[name]
    return rows


def run(name: str, rounds: int, round_seconds: float, seed: int, folder: Path | None) -> dict[str, Any]:
    """One scenario, real and simulated; the volunteers' logs stay in ``folder``."""
    scenario = SCENARIOS[name]
    line = Link(rate_mbit=RATE_MBIT)
    hosts = 1 + REPLICAS * MODEL.blocks
    with (
        World.build(hosts, link=Link(delay_ms=DELAY_MS), uplink=line, downlink=line, seed=seed) as world,
        LocalSwarm(folder=folder and folder / name, manifest=manifest_of(round_seconds), seed=seed) as swarm,
    ):
        for number in scenario.slow:
            queue = round(QUEUE_SECONDS * SLOW_MBIT * 1e6 / 8)
            world.set_uplink(number + 1, Link(rate_mbit=SLOW_MBIT, queue_bytes=queue))
        real = Real(world, swarm, scenario)
        first = real.start()
        print(f"{name}: all train, measuring {rounds} rounds from round {first}", file=sys.stderr, flush=True)
        figures, middle, left = real.measure(first, rounds)
        late = world.lateness()
        rows = compare(figures, simulate(real, first, rounds, middle, left))
        return {
            "scenario": name,
            "passes": all(row.get("within", True) for row in rows.values()),
            "figures": rows,
            "phases_s": round(swarm.manifest.rounds.lengths.total, 3),
            "bench_late_share": round(late.late / max(1, late.packets), 4),
            "load": round(psutil.getloadavg()[0], 1),
        }


def show(row: dict[str, Any]) -> None:
    """A scenario for people."""
    print(f"{row['scenario']}: {'within bounds' if row['passes'] else 'OUT OF BOUNDS'}")
    for name, both in row["figures"].items():
        print(f"  {name:14} real {both['real']:>14,.4g}  simulated {both['simulated']:>14,.4g}  "
              f"apart {both['difference']:.3f}{'' if both.get('within', True) else '  (too far)'}")  # fmt: skip
    print(f"  packets late on the bench: {row['bench_late_share']:.1%}; load of the machine {row['load']:g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios; the exit code is 0 if all are within bounds."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    top.add_argument("--rounds", type=int, default=20, help="measured, after everybody trains (default 20)")
    top.add_argument("--round-seconds", type=float, default=12.0)
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--folder", type=Path, help="keep the volunteers' logs here")
    top.add_argument("--json", action="store_true", help="print one JSON object last")
    options = top.parse_args(arguments)
    if options.rounds < 4:
        top.error(f"--rounds {options.rounds}: at least 4, for somebody leaves in the middle")
    if (reason := why_not()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    rows = []
    for name in options.scenarios:
        rows.append(run(name, options.rounds, options.round_seconds, options.seed, options.folder))
        show(rows[-1])
    print("why they differ: " + "; ".join(DIFFERENCES))
    if options.json:
        about = {"settings": settings(options), "machine": machine()}
        print(json.dumps({"rows": rows, "differences": DIFFERENCES, **about}))
    return 0 if all(row["passes"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
