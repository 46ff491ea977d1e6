"""Many generations at once against six holders that train: bytes that come, how long callers wait, what training loses.

    python -m benchmarks.serving.load --callers 1 4 16 64 --json

Real processes on loopback: a bootstrap node and two volunteers for each of three blocks. After ``--rounds`` rounds at
rest, so many callers write texts of ``--bytes`` bytes at temperature 1 for as many rounds, one number of callers after
another. Everybody shares this machine, so callers take processor time from training whomever they ask. Therefore every
number of callers has a control beside it: as many rounds in which a program that asks nobody takes the processor time
that the callers took.

* ``training_share``: samples/s against the rounds at rest; ``control_share``: the same of the control
* ``kept``: samples/s with callers against the control's: what serving leaves of training on these processors
* ``kept_of_processor``: training's share of the processor time that it and serving (event loops, answers, daemons; all
  over that at rest) took with callers: the same, whatever else this machine does meanwhile
* ``cores``: processor time by the second, over that at rest: of the callers, and of all volunteers together for their
  event loops, their other threads (answers) and their daemons; ``training`` is all of the training threads'
* ``serving``: of the volunteer that served most, the share of the wall clock that its serving thread was at work
  and the processor time that this thread took, per second (which ``--serve-share`` bounds, against training's)
* ``lost``: texts that ended in an error; ``refused``: single requests that were turned down (busy) and asked again
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.machine import machine, settings
from benchmarks.serving.processor import KINDS, burning, spent
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


@dataclass(frozen=True)
class Watched:
    """What volunteers did while something else went on."""

    seconds: float
    rate: float
    """Mean samples per second of a volunteer."""
    used: dict[str, float]
    """Processor seconds by kind, see ``spent``."""
    serving: dict[str, float]
    """Shares of the time that a serving thread took: of the wall clock, and of a processor."""

    def cores(self) -> dict[str, float]:
        """Processor seconds a second."""
        return {kind: round(self.used[kind] / self.seconds, 3) for kind in KINDS}


def _watched(swarm: LocalSwarm, nodes: list[Node], work: Callable[[], Any]) -> Watched:
    """Do ``work``, and tell what the volunteers did meanwhile."""
    first, before, began = round_now(swarm), spent(nodes), time.monotonic()
    work()
    seconds, after, last = time.monotonic() - began, spent(nodes), round_now(swarm)
    used = {kind: after[kind] - before[kind] for kind in KINDS}
    wait_for_reports_of(swarm, last)
    rate = statistics.fmean(rates(nodes, range(first + 1, last)) or [0.0])
    return Watched(seconds, rate, used, _serving(nodes, range(first, last)))


def _serving(nodes: list[Node], rounds: range) -> dict[str, float]:
    """What answers took of the time between the reports of the first and the last of these rounds, at most."""
    shares: dict[str, float] = {"wall": 0.0, "processor": 0.0}
    for node in nodes:
        told = [
            event
            for event in node.events
            if event["event"] == "round" and event["subject"] >= 0 and event["round"] in rounds and "serving" in event
        ]
        if len(told) > 1:
            begin, end = told[0], told[-1]
            for name, field in (("wall", "seconds"), ("processor", "cpu_seconds")):
                share = (end["serving"][field] - begin["serving"][field]) / (end["time"] - begin["time"])
                shares[name] = max(shares[name], round(share, 3))
    return shares


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
        seconds = options.rounds * options.round_seconds
        rest = _watched(swarm, nodes, lambda: time.sleep(seconds))
        rows.append({"callers": 0, "samples_per_s": round(rest.rate, 2), "cores": rest.cores()})
        for callers in options.callers:
            command = [sys.executable, "-m", "benchmarks.serving.callers", str(swarm.peers_file)]
            command += ["--callers", str(callers), "--bytes", str(options.bytes), "--seconds", str(seconds)]
            told: dict[str, Any] = {}

            def ask(command: list[str] = command, told: dict[str, Any] = told) -> None:
                done = subprocess.run(command, timeout=seconds + 300, stdout=subprocess.PIPE, check=True)
                told.update(json.loads(done.stdout))

            asked = _watched(swarm, nodes, ask)
            asking = told.pop("processor_s") / asked.seconds

            def burn(cores: float = asking, seconds: float = asked.seconds) -> None:
                with burning(cores, seconds):
                    pass

            control = _watched(swarm, nodes, burn)
            cores = {kind: round(used - rest.cores()[kind], 3) for kind, used in asked.cores().items()}
            serving = sum(max(0.0, cores[kind]) for kind in ("loop", "other", "daemon"))
            kept = asked.cores()["training"] / max(1e-9, asked.cores()["training"] + serving)
            cores |= {"callers": round(asking, 3), "training": asked.cores()["training"]}
            row = {
                "callers": callers,
                "samples_per_s": round(asked.rate, 2),
                "training_share": round(asked.rate / rest.rate, 3),
                "control_share": round(control.rate / rest.rate, 3),
                "kept": round(asked.rate / control.rate, 3),
                "kept_of_processor": round(kept, 3),
                "cores": cores,
                "serving": asked.serving,
                **told,
            }
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
