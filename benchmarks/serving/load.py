"""Many generations at once against six holders that train: bytes that come, how long callers wait, what training loses.

    python -m benchmarks.serving.load --callers 1 4 16 64 --json

Real processes on loopback: a bootstrap node and two volunteers for each of three blocks. After ``--rounds`` rounds at
rest, so many callers write texts of ``--bytes`` bytes at temperature 1 for as many rounds, one number of callers after
another. Everybody shares this machine: on two cores the callers, too, take processor time from training, so
``training_share`` (samples/s against the rounds at rest) shows what a holder loses to serving and to its neighbours.
``lost`` counts texts that ended in an error, ``refused`` single requests that were turned down (busy) and asked again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import machine, settings
from benchmarks.watching import round_now, wait_for_reports_of
from blockswarm.model.config import SIZES
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node

START_SECONDS = 180.0
REPLICAS = 2


def rates(nodes: list[Node], rounds: range) -> list[float]:
    """Samples per second that the volunteers reported of these rounds."""
    found = []
    for node in nodes:
        node.poll()
        found += [
            event["samples_per_s"]
            for event in node.events
            if event["event"] == "round" and event["subject"] >= 0 and event["round"] in rounds
        ]
    return found


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    rows: list[dict[str, Any]] = []
    with LocalSwarm(model=SIZES[options.size], round_seconds=options.round_seconds, seed=options.seed) as swarm:
        swarm.start_bootstrap(wait=START_SECONDS)
        extra = [] if options.serve_share is None else ["--serve-share", str(options.serve_share)]
        nodes = [
            swarm.start_volunteer(block, *extra)
            for _ in range(REPLICAS)
            for block in range(swarm.manifest.model.blocks)
        ]
        for node in nodes:
            node.wait_event("training", timeout=START_SECONDS)
        wait_for_reports_of(swarm, round_now(swarm))
        rest = 0.0
        for callers in [0, *options.callers]:
            first = round_now(swarm)
            seconds = options.rounds * options.round_seconds
            told: dict[str, Any] = {}
            if callers:
                command = [sys.executable, "-m", "benchmarks.serving.callers", str(swarm.peers_file)]
                command += ["--callers", str(callers), "--bytes", str(options.bytes), "--seconds", str(seconds)]
                done = subprocess.run(command, timeout=seconds + 300, stdout=subprocess.PIPE, check=True)
                told = json.loads(done.stdout)
            else:
                time.sleep(seconds)
            last = round_now(swarm)
            wait_for_reports_of(swarm, last)
            rate = statistics.fmean(rates(nodes, range(first + 1, last)) or [0.0])
            rest = rate if not callers else rest
            row = {"callers": callers, "samples_per_s": round(rate, 2), "training_share": round(rate / rest, 3), **told}
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--callers", nargs="+", type=int, default=[1, 4, 16, 64])
    top.add_argument("--bytes", type=int, default=32, help="of each text (default 32)")
    top.add_argument("--rounds", type=int, default=4, help="at rest, and with each number of callers (default 4)")
    top.add_argument("--round-seconds", type=float, default=10.0)
    top.add_argument("--serve-share", type=float, help="of the volunteers; their own default if not given")
    top.add_argument("--size", choices=list(SIZES), default="tiny")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--json", action="store_true", help="print one JSON object last")
    options = top.parse_args(arguments)
    rows = run(options)
    if options.json:
        print(json.dumps({"rows": rows, "settings": settings(options), "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
