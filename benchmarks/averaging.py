"""All-reduce: ours against ``hivemind.DecentralizedAverager`` and against the bare streams, on one machine.

    python benchmarks/averaging.py --peers 4 8 --values 1000000 10000000 --repeats 3 --json

Every peer is a process (hivemind's start two more each) with a p2pd of its own, on loopback. The three take turns,
``--repeats`` times, after one run of each that does not count; medians are compared. Time is from the first peer that
begins to the last that ends. The group is found before that in all three. Ours contains what a round has beyond the
sum: the signed decision, the digest of the new state, the votes and the certificate. hivemind is measured with each of
``--part-bytes`` and its best counts. The floor moves the same bytes all to all over p2pd's binary streams, twice, and
computes nothing.

Values are float32, drawn anew in every run; the beginning of every average is compared with the true mean.
``wire_ratio`` is bytes handed to streams, headers included, over 2(K - 1)/K times the size; ``cpu_ratio`` processor
seconds of all processes (daemons included) over hivemind's; a ratio below one is better for ours.

``loop_lag_p99_ms`` is how late the event loops of our peers were during their rounds, looked at every 5 ms, over all
peers and repeats. ``--lag`` measures that alone:

    python benchmarks/averaging.py --lag --peers 4 --values 10000000 --repeats 5 --json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import block_layout
from blockswarm.peer.lag import quantile
from blockswarm.swarm.manifest import Manifest, create_manifest

ROOT = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = 180.0
"""Longest time a peer may take for anything."""

PHASES = {"meet": 20.0, "scatter": 60.0, "decide": 10.0, "gather": 60.0, "commit": 30.0}
"""Long: nothing may be late here, and a phase ends when all are through."""

MOST_ERROR = 1e-4
"""An average further from the true mean than this share of it is no average."""


def manifest_of(values: int) -> Manifest:
    """A swarm whose block has about ``values`` parameters."""
    bare = ModelConfig(dim=8, blocks=1, layers=1, heads=1, context=16, previous_bytes=0)
    width = 16
    rows = max(2, (values - block_layout(bare).size - width * bare.dim) // width)
    model = ModelConfig(**(bare.to_mapping() | {"ngram_tables": 1, "ngram_rows": rows, "ngram_width": width}))
    seconds = sum(PHASES.values()) + 20.0
    return create_manifest(
        name="bench", now=time.time(), size=model, compression="none", round_seconds=seconds, phases=PHASES
    )


class BenchmarkError(Exception):
    """A peer failed; the figures would mean nothing."""


@dataclass
class Outcome:
    """One run of one kind."""

    seconds: float
    cpu: float
    sent: int
    phases_ms: dict[str, float]
    """Ours only, of the first peer."""
    lag_ms: list[float]
    """Ours only: lateness of the event loops, of all peers."""


class Peer:
    """One process. A thread reads what it says, so that every wait for an answer has an end."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.averaging_peer", kind, json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries print too
                self._said.put(line)
        self._said.put("")

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request; `answer` waits for what comes of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says next; raises `BenchmarkError` when that is a failure, or nothing."""
        try:
            line = self._said.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise BenchmarkError(f"{self.kind}: a peer did not answer within {ANSWER_SECONDS:g} s") from None
        if not line:
            raise BenchmarkError(f"{self.kind}: a peer ended")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise BenchmarkError(f"{self.kind}: {answer['failure']}")
        return answer

    def family(self) -> list[psutil.Process]:
        """The process and all that it has started."""
        try:
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Group:
    """All peers of one kind. A context manager: whatever happens, none is left."""

    def __init__(self, kind: str, options: dict[str, Any], peers: int) -> None:
        self.kind, self._options, self._count = kind, options, peers
        self.peers: list[Peer] = []
        self.number = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        addresses: dict[str, list[str]] = {}
        for index in range(self._count):
            given = {"index": index, "peers": self._count, "initial": next(iter(addresses.values()), [])}
            self.peers.append(Peer(self.kind, self._options | given))
            ready = self.peers[-1].answer()
            addresses[ready["peer"]] = ready["addresses"]
        self._all({"addresses": addresses})

    def run(self) -> Outcome:
        """Average once."""
        self.number += 1
        self._all({"prepare": self.number})
        before = self._cpu()
        answers = self._all({"go": self.number})
        cpu = self._cpu() - before
        worst = max(answer["error"] for answer in answers)
        if not worst < MOST_ERROR:
            raise BenchmarkError(f"{self.kind}: the average is off by {worst:.2g} of the mean")
        seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        sent = sum(answer.get("sent", 0) for answer in answers)
        lag = [late for answer in answers for late in answer.get("lag_ms", [])]
        return Outcome(seconds, cpu, sent, answers[0].get("phases_ms", {}), lag)

    def close(self) -> None:
        """End all peers, and whatever they started."""
        families = [member for peer in self.peers for member in peer.family()]
        for peer in self.peers:
            if peer.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    peer.process.stdin.close()
        _, alive = psutil.wait_procs(families, timeout=15)
        for straggler in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                straggler.kill()

    def _all(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        for peer in self.peers:
            peer.ask(request)
        return [peer.answer() for peer in self.peers]

    def _cpu(self) -> float:
        total = 0.0
        for member in (member for peer in self.peers for member in peer.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
        return total


def groups(peers: int, manifest: Manifest, part_bytes: Sequence[int], *, lag: bool) -> dict[str, Group]:
    """All kinds, for a block of that manifest's size; ours alone where only the ``lag`` is asked for."""
    values = block_layout(manifest.model).size
    made = {"ours": Group("ours", {"manifest": manifest.canonical().hex()}, peers)}
    if lag:
        return made
    made["floor"] = Group("floor", {"values": values}, peers)
    for part in part_bytes:
        made[f"hivemind {part >> 10} KiB"] = Group("hivemind", {"values": values, "part_bytes": part}, peers)
    return made


def measure(peers: int, values: int, repeats: int, part_bytes: Sequence[int], *, lag: bool) -> dict[str, Any]:
    """One row of the table."""
    manifest = manifest_of(values)
    size = block_layout(manifest.model).size
    with contextlib.ExitStack() as stack:
        made = {
            name: stack.enter_context(group) for name, group in groups(peers, manifest, part_bytes, lag=lag).items()
        }
        runs: dict[str, list[Outcome]] = {name: [] for name in made}
        for turn in range(repeats + 1):
            for name, group in made.items():
                outcome = group.run()
                if turn:  # the first of each warms up
                    runs[name].append(outcome)
                print(f"  K {peers}, {name}: {outcome.seconds:.3f} s", file=sys.stderr, flush=True)
    seconds = {name: statistics.median(run.seconds for run in found) for name, found in runs.items()}
    cpu = {name: statistics.median(run.cpu for run in found) for name, found in runs.items()}
    late = [each for run in runs["ours"] for each in run.lag_ms]
    ours = {
        "peers": peers,
        "values": size,
        "ours_s": round(seconds["ours"], 3),
        "loop_lag_p99_ms": quantile(late, 0.99),
        "loop_lag_max_ms": round(max(late), 2),
        "lag_samples": len(late),
        "phases_ms": runs["ours"][-1].phases_ms,
    }
    if lag:
        return ours
    best = min((name for name in runs if name.startswith("hivemind")), key=lambda name: seconds[name])
    ideal = 2 * (peers - 1) * 4 * size
    return {
        **ours,
        "hivemind_s": round(seconds[best], 3),
        "hivemind_part": best.removeprefix("hivemind "),
        "speedup": round(seconds[best] / seconds["ours"], 2),
        "floor_s": round(seconds["floor"], 3),
        "to_floor": round(seconds["ours"] / seconds["floor"], 2),
        "wire_ratio": round(statistics.median(run.sent for run in runs["ours"]) / ideal, 4),
        "cpu_ratio": round(cpu["ours"] / cpu[best], 2),
        "cpu_s": {name: round(value, 2) for name, value in cpu.items()},
        "runs_s": {name: [round(run.seconds, 3) for run in found] for name, found in runs.items()},
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--values", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part-bytes", type=int, nargs="+", default=[1 << 19, 1 << 21], help="hivemind's part sizes")
    parser.add_argument("--lag", action="store_true", help="only how late our event loops are")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    rows = []
    for peers in args.peers:
        for values in args.values:
            row = measure(peers, values, args.repeats, args.part_bytes, lag=args.lag)
            rows.append(row)
            shown = {key: value for key, value in row.items() if not isinstance(value, dict)}
            print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    print(f"float32, no compression; {args.repeats} runs of each in turn, medians; {machine}")
    if args.json:
        print(json.dumps({"rows": rows, "repeats": args.repeats, "machine": machine, "load": psutil.getloadavg()}))


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as problem:
        sys.exit(f"error: {problem}")
