"""One volunteer and one client, measured from outside: what joining, training, serving and asking cost.

    python benchmarks/volunteer.py --size tiny --threads 1 --repeats 3 --json

Real processes on loopback: a bootstrap node and one volunteer. The model has one block of the size's dimensions, so
that one volunteer can serve it whole. Printed:

* training inside the running peer as a share of a bare ``BlockLearner`` loop in a process of its own, on as many
  threads; the two take turns, ``--repeats`` times, and the ratio of the medians counts
* ``join`` to its first local step (s), and to its first committed round (in rounds)
* resident memory of the volunteer with its p2pd
* the event loop's lateness while training, p99 (ms), from the volunteer's own reports
* ``blockswarm generate``, started fresh: time to the first byte (s), processor time until its end (s; most of it is
  Python importing, and on a busy machine it says more than the clock), and peak resident memory

The bare loop trains for as long as the volunteer is measured. Rounds take ``--round-seconds``; the volunteer's rate
includes averaging, evaluation, serving and announcing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from blockswarm.model.config import SIZES
from blockswarm.peer.local import LocalSwarm, model_of
from blockswarm.peer.node import Node

ROUNDS_MEASURED = 2
"""Whole rounds a rate is taken over; the first round of a volunteer is not among them."""


def bare_loop(size: str, threads: int, seconds: float) -> float:
    """Samples per second of a plain ``BlockLearner`` loop, after three steps to warm up."""
    from blockswarm.model.config import RECIPES
    from blockswarm.model.corpus import batches, open_corpus
    from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
    from blockswarm.model.learner import BlockLearner

    config, recipe = model_of(size, 1), RECIPES["default"]
    learner = BlockLearner(
        config,
        recipe,
        0,
        block_layout(config).genesis(0, 0),
        embedding_layout(config).genesis(0, EMBEDDING),
        batches=batches(open_corpus("docs", context=config.context), 1, recipe.batch, config.context),
        seed=1,
        device="cpu",
        threads=threads,
    )
    for _ in range(3):
        learner.step()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        learner.step()
        steps += 1
    return steps * learner.samples_per_step / (time.perf_counter() - begin)


def run_bare_loop(arguments: argparse.Namespace, seconds: float) -> float:
    """`bare_loop` in a process of its own, with the volunteer's environment."""
    command = [sys.executable, __file__, "--bare", str(seconds), "--size", arguments.size]
    command += ["--threads", str(arguments.threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def resident_mb(node: Node) -> float:
    """Resident memory of a process and its descendants, MB."""
    processes = [psutil.Process(node.process.pid), *node.family()]
    return sum(process.memory_info().rss for process in processes) / 1e6


def ask(swarm: LocalSwarm) -> tuple[float, float, float]:
    """A fresh ``blockswarm generate``: seconds to its first byte, processor seconds, peak resident memory in MB."""
    command = [sys.executable, "-m", "blockswarm", "generate", "The ", "--max-bytes", "16", "--seed", "1"]
    command += ["--peers-file", str(swarm.peers_file)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=swarm.folder)
    if process.stdout is None or not process.stdout.read(1):
        raise SystemExit("generate printed nothing")
    first = time.perf_counter() - begin
    process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return first, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def measure_volunteer(arguments: argparse.Namespace) -> dict[str, float]:
    """One volunteer from its start to its end."""
    with LocalSwarm(
        model=model_of(arguments.size, 1), round_seconds=arguments.round_seconds, threads=arguments.threads
    ) as swarm:
        swarm.start_bootstrap()
        begin = time.time()
        node = swarm.start_volunteer(0)
        training = node.wait_event("training", timeout=120)
        committed = node.wait_event(
            "round", lambda event: event["committed"] and event["subject"] == 0, timeout=10 * arguments.round_seconds
        )
        last = committed["round"] + ROUNDS_MEASURED
        node.wait_event(
            "round",
            lambda event: event["round"] >= last and event["subject"] == 0,
            timeout=(ROUNDS_MEASURED + 2) * arguments.round_seconds,
        )
        measured = [
            event
            for event in node.events
            if event["event"] == "round" and event["subject"] == 0 and event["round"] > committed["round"]
        ]
        memory = resident_mb(node)
        first_byte, client_cpu, client_mb = ask(swarm)
        return {
            "samples_per_s": statistics.mean(event["samples_per_s"] for event in measured),
            "join_to_first_step_s": training["time"] - begin,
            "join_to_first_commit_rounds": (committed["time"] - begin) / arguments.round_seconds,
            "resident_mb": memory,
            "loop_lag_p99_ms": max(event["loop_lag_p99_ms"] for event in measured),
            "generate_first_byte_s": first_byte,
            "generate_processor_s": client_cpu,
            "generate_peak_mb": client_mb,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=15.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--bare", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(bare_loop(arguments.size, arguments.threads, arguments.bare))
        return
    bare, peers = [], []
    for _ in range(arguments.repeats):
        bare.append(run_bare_loop(arguments, ROUNDS_MEASURED * arguments.round_seconds))
        peers.append(measure_volunteer(arguments))
    result: dict[str, Any] = {name: round(statistics.median(peer[name] for peer in peers), 3) for name in peers[0]}
    result |= {
        "bare_samples_per_s": round(statistics.median(bare), 3),
        "throughput_ratio": round(statistics.median(p["samples_per_s"] for p in peers) / statistics.median(bare), 4),
        "size": arguments.size,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "round_seconds": arguments.round_seconds,
        "cores": os.cpu_count(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load_1m": round(os.getloadavg()[0], 2),
        "bare_runs": [round(rate, 2) for rate in bare],
        "peer_runs": [round(peer["samples_per_s"], 2) for peer in peers],
    }
    for name, value in result.items():
        print(f"{name:30} {value}")
    if arguments.json:
        print(json.dumps(result | {"command": f"python benchmarks/{Path(__file__).name} " + " ".join(sys.argv[1:])}))


if __name__ == "__main__":
    main()
