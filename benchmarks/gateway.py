"""What the gateway adds to a request: the time of a call over HTTP, less that of the same call in Python.

    python benchmarks/gateway.py --size tiny --blocks 2 --repeats 200 --json

Real processes on loopback: a bootstrap node, one volunteer for each block, trained for a few steps and then only
serving, and ``blockswarm gateway``. This process asks in turns: a `SwarmClient` of its own, and the gateway, over one
HTTP connection with the standard library. Both ask the same holders for the same texts with the same seeds, and the
texts are compared. Printed, for each number of bytes, whole and as a stream:

* ``client_ms`` and ``http_ms``: median and 95th percentile of each call
* ``overhead_ms`` and ``overhead_p95_ms``: the same of the differences of pairs, the same text asked for both ways one
  after the other; on a machine that does other things the percentile is mostly theirs

A text of no bytes asks no holder anything: there the difference is the gateway alone. ``--peers-file`` measures
through a swarm that runs already; if that trains, texts may differ, which is then only counted.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from blockswarm.peer.local import LocalSwarm, model_of
from blockswarm.swarm import SwarmClient
from blockswarm.swarm.manifest import create_manifest

TRAIN_SAMPLES = 200
LENGTHS = (0, 1, 16, 64)


@contextlib.contextmanager
def serving_swarm(size: str, blocks: int) -> Iterator[Path]:
    """The peers file of a swarm that has been trained for a moment and does nothing but serve."""
    manifest = create_manifest(
        name="gateway", now=time.time(), size=model_of(size, blocks), train_samples=TRAIN_SAMPLES, bandwidth=12.5e6
    )
    with LocalSwarm(manifest=manifest) as swarm:
        swarm.start_bootstrap()
        nodes = [swarm.start_volunteer(block) for block in range(blocks)]
        for node in nodes:
            node.wait_event("trained", timeout=300)
        yield swarm.peers_file


@contextlib.contextmanager
def gateway(peers_file: Path) -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    """A gateway: its process, host and port, and the seconds until it was ready."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "blockswarm", "gateway", "--port", "0", "--peers-file", str(peers_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=peers_file.parent)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if not words:
            raise SystemExit("the gateway did not start")
        yield process, words[1].split("/")[2], time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(10)


class Over:
    """One HTTP connection to the gateway."""

    def __init__(self, address: str, model: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._model = model

    def text(self, body: dict[str, Any]) -> str:
        """The text of a completion, whole or put together from its chunks."""
        data = json.dumps({"model": self._model, "prompt": "The ", **body})
        self._connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
        answer = self._connection.getresponse().read()
        if not body["stream"]:
            return str(json.loads(answer)["choices"][0]["text"])
        events = [event.removeprefix(b"data: ") for event in answer.split(b"\n\n")[:-2]]
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def timed(call: Callable[[], str]) -> tuple[float, str]:
    """Milliseconds that ``call`` takes, and what it gives."""
    began = time.perf_counter()
    text = call()
    return 1e3 * (time.perf_counter() - began), text


def measure(client: SwarmClient, over: Over, *, length: int, stream: bool, repeats: int) -> dict[str, Any]:
    """Both ways in turns, after a few calls to warm up."""
    in_python, in_http, different = [], [], 0
    for seed in range(-5, repeats):

        def ask(seed: int = abs(seed)) -> str:
            options: dict[str, Any] = {"max_bytes": length, "seed": seed, "temperature": 1.0}
            return "".join(client.stream("The ", **options)) if stream else client.generate("The ", **options)

        def ask_over_http(seed: int = abs(seed)) -> str:
            return over.text({"max_tokens": length, "seed": seed, "stream": stream})

        # Who comes second finds caches warm: each comes second every other time.
        calls = [(in_python, ask), (in_http, ask_over_http)]
        texts = []
        for times, call in calls if seed % 2 else reversed(calls):
            milliseconds, text = timed(call)
            texts.append(text)
            if seed >= 0:
                times.append(milliseconds)
        different += texts[0] != texts[1]
    differences = [over_http - alone for over_http, alone in zip(in_http, in_python, strict=True)]
    return {
        "bytes": length,
        "stream": stream,
        "calls": repeats,
        "client_ms": round(statistics.median(in_python), 3),
        "client_p95_ms": round(p95(in_python), 3),
        "http_ms": round(statistics.median(in_http), 3),
        "http_p95_ms": round(p95(in_http), 3),
        "overhead_ms": round(statistics.median(differences), 3),
        "overhead_p95_ms": round(p95(differences), 3),
        "different_texts": different,
    }


def p95(times: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", help="of the blocks of a swarm of one's own")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="BYTES")
    parser.add_argument("--peers-file", type=Path, help="of a swarm that runs already")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        own = arguments.peers_file is None
        peers = stack.enter_context(serving_swarm(arguments.size, arguments.blocks)) if own else arguments.peers_file
        peers = peers.resolve()
        process, address, seconds = stack.enter_context(gateway(peers))
        client = stack.enter_context(SwarmClient.connect(peers, timeout=60))
        over = Over(address, client.run_id)
        rows = []
        for length in arguments.lengths:
            for stream in (False, True):
                rows.append(measure(client, over, length=length, stream=stream, repeats=arguments.repeats))
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        memory = psutil.Process(process.pid).memory_info().rss / 1e6
    result = {
        "rows": rows,
        "overhead_ms": max(row["overhead_ms"] for row in rows),
        "gateway_ready_s": round(seconds, 2),
        "gateway_resident_mb": round(memory, 1),
        "size": arguments.size if own else "as it runs",
        "blocks": arguments.blocks if own else "as it runs",
        "cores": os.cpu_count(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load_1m": round(os.getloadavg()[0], 2),
    }
    print("  ".join(f"{name} {value}" for name, value in result.items() if name != "rows"))
    if arguments.json:
        print(json.dumps(result | {"command": f"python benchmarks/{Path(__file__).name} " + " ".join(sys.argv[1:])}))


if __name__ == "__main__":
    main()
