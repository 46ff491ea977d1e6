"""How a simulated swarm's figures grow with its size; the tables and the picture of docs/scaling.md.

    python benchmarks/scaling.py --peers 100 300 1000 3000 10000 --plot docs/scaling.png

Two swarms are compared at every size: the one that ``blockswarm init`` makes (three blocks, rounds of 10 s, groups of
16, one directory key a block), and one laid out for it: a block for every ``--replicas`` volunteers (at most 256),
rounds and groups as given, and as many directory keys as the replicas need. Everything printed is simulated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockswarm.model.config import SIZES
from blockswarm.pictures import pyplot, save_picture
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.simulation.directory import KEY_RECORDS
from blockswarm.swarm.simulation.report import Resources, report
from blockswarm.swarm.simulation.scenario import Scenario, scenario_from
from blockswarm.swarm.simulation.shape import SwarmShape, default_manifest
from blockswarm.swarm.simulation.simulator import Simulation

MOST_BLOCKS = 256
"""Of a manifest."""

SHOWN: dict[str, tuple[str, Callable[[dict[str, Any]], float | None]]] = {
    "participation": ("participation", lambda said: said["participation"]),
    "work kept": ("share of the work kept", lambda said: said["work_kept"]),
    "rounds/h": ("committed rounds an hour", lambda said: said["rounds_per_hour"]),
    "coverage": ("coverage", lambda said: said["coverage"]),
    "join to commit, s": ("seconds from join to first commit", lambda said: said["join_to_commit_s"]),
    "GB/day averaging": ("GB sent a day, averaging", lambda said: sent(said, "averaging")),
    "GB/day states": ("GB sent a day, states", lambda said: sent(said, "states")),
    "GB/day meeting": ("GB sent a day, meeting", lambda said: sent(said, "meeting")),
    "GB/day directory": ("GB sent a day, directory", lambda said: sent(said, "directory")),
    "DHT messages/h": (
        "directory messages an hour",
        lambda said: (said["percentiles"]["dht_messages_per_peer_hour"] or {}).get("p50"),
    ),
    "records answered": ("requests for records answered", lambda said: said["directory"]["answered"]),
    "client s": ("client latency, s", lambda said: said["client"]["latency_s"]),
}


def sent(said: dict[str, Any], purpose: str) -> float:
    """GB that a volunteer sends in a day for one purpose."""
    return float(said["gb_per_peer_day"][purpose]["sent"])


def laid_out(peers: int, replicas: int, seconds: float, group: int) -> SwarmShape:
    """The manifest of a swarm of that size: enough blocks that groups take in all replicas."""
    blocks = max(3, min(MOST_BLOCKS, peers // replicas))
    shards = min(256, -(-2 * peers // blocks // KEY_RECORDS))
    model = dataclasses.replace(SIZES["tiny"], blocks=blocks)
    manifest = create_manifest(
        name="scaling",
        now=0.0,
        size=model,
        round_seconds=seconds,
        bandwidth=7e6 / 8,
        group_size=group,
        directory_shards=max(1, shards),
    )
    return SwarmShape.of(manifest)


def simulate(shape: SwarmShape, scenario: Scenario, peers: int, hours: float, seed: int) -> dict[str, Any]:
    """One simulation's figures."""
    begin = time.process_time()
    simulation = Simulation(shape, scenario, peers=peers, hours=hours, seed=seed)
    for _ in simulation.run():
        pass
    return report(simulation, Resources(time.process_time() - begin, 0.0))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a column for each size."""
    lines = ["| | " + " | ".join(f"{row['peers']:,}" for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines.append("| blocks | " + " | ".join(str(row["blocks"]) for row in rows) + " |")
    for name, (_, value) in SHOWN.items():
        lines.append(f"| {name} | " + " | ".join(written(value(row)) for row in rows) + " |")
    return "\n".join(lines)


def written(value: float | None) -> str:
    """Three digits, with commas."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Growth with size, one panel a figure, sizes on a logarithmic axis."""
    figure, axes = pyplot().subplots(4, 3, figsize=(11, 11), layout="constrained")
    figure.suptitle("Simulated growth with the number of volunteers")
    for axis, (title, value) in zip(axes.flat, SHOWN.values(), strict=True):
        for (name, rows), colour, marker in zip(found.items(), ("#c1440e", "#1b4965"), "os", strict=True):
            points = [(row["peers"], value(row)) for row in rows if value(row) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=name)
        axis.set_xscale("log")
        axis.set_ylim(0, None)
        axis.set_title(title, fontsize=9, loc="left")
    axes.flat[0].legend(frameon=False, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("volunteers")
    save_picture(figure, path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--scenario", default="home", help="Name or TOML file.")
    parser.add_argument("--replicas", type=int, default=12, help="Volunteers of a block in the swarm laid out.")
    parser.add_argument("--round-seconds", type=float, default=30.0, help="Its rounds.")
    parser.add_argument("--group-size", type=int, default=32, help="Its groups.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="Write a picture (PNG).")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    scenario = scenario_from(chosen.scenario)
    default = SwarmShape.of(default_manifest())
    found: dict[str, list[dict[str, Any]]] = {"as init makes it": [], "laid out for its size": []}
    for peers in chosen.peers:
        own = laid_out(peers, chosen.replicas, chosen.round_seconds, chosen.group_size)
        for rows, shape in zip(found.values(), (default, own), strict=True):
            rows.append(simulate(shape, scenario, peers, chosen.hours, chosen.seed))
            print(f"{peers} volunteers, {shape.blocks} blocks: {rows[-1]['elapsed_s']:.1f} CPU s", file=sys.stderr)
    if chosen.plot is not None:
        draw(found, chosen.plot)
    if chosen.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        print(f"\nSIMULATED, {name}:\n\n{table(rows)}")


if __name__ == "__main__":
    main()
