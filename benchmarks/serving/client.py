"""The client's side: texts from the swarm and from the pipeline, by turns. Run on a host of its own by ``__main__``."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import wire
from blockswarm.model.sampling import sample_byte
from blockswarm.model.windows import window_start
from blockswarm.swarm import SwarmClient


@dataclass
class Tally:
    """Texts of one kind, added up."""

    bytes: int = 0
    seconds: float = 0.0
    traversals: int = 0

    def add(self, count: int, seconds: float, traversals: int) -> None:
        """One more."""
        self.bytes += count
        self.seconds += seconds
        self.traversals += traversals


class Pipeline:
    """The plain pipeline, driven from here: a byte goes in, its log-probabilities come out, the next is drawn.

    Parameters
    ----------
    first, last : str
        ``address:port`` of the first and of the last stage.
    context : int
        Bytes of a window; a longer text goes on in one of half the length, as it does in the swarm.
    """

    def __init__(self, first: str, last: str, context: int) -> None:
        self._feed: socket.socket = wire.dial(first)
        self._answer: socket.socket = wire.dial(last)
        self._context = context

    def write(self, prompt: bytes, count: int, temperature: float, seed: int) -> bytes:
        """``count`` bytes after ``prompt``."""
        text, read, begin = bytearray(prompt), 0, -1
        while len(text) < len(prompt) + count:
            start = window_start(len(text) - 1, self._context)
            fresh = start != begin
            begin, read = start, start if fresh else read
            wire.send(self._feed, fresh=fresh, text=bytes(text[read:]))
            read = len(text)
            row = np.frombuffer(wire.receive(self._answer)[2], "<f4").astype(np.float32)
            text.append(sample_byte(row, temperature=temperature, seed=seed, position=len(text)))
        return bytes(text[len(prompt) :])


def measure(plan: dict[str, Any], pipeline: Pipeline) -> list[dict[str, Any]]:
    """Rows of one length of output: every prompt is written in every mode, one after the other, then the pipeline's."""
    count, prompts = plan["bytes"], [bytes.fromhex(each) for each in plan["prompts"]]
    tallies: dict[tuple[str, float], Tally] = {}
    plain = Tally()
    exact = "exact+counts" if plan["counts"] else "exact"
    with SwarmClient.connect(plan["peers"], timeout=60, counts=plan["counts"]) as client:
        for readout in plan["readouts"]:  # connections, and the block to draft with
            client.generate(prompts[0], max_bytes=8, readout=readout, draft=plan["draft"])
        _wait_for_drafter(client, plan["draft"])
        for seed, prompt in enumerate(prompts):
            for readout in plan["readouts"]:
                for temperature in plan["temperatures"]:
                    options = {"readout": readout, "temperature": temperature, "seed": seed, "draft": plan["draft"]}
                    began = time.perf_counter()
                    client.generate(prompt, max_bytes=count, timeout=600, **options)
                    seconds, last = time.perf_counter() - began, client.stats.last
                    assert last is not None and last.bytes == count
                    tally = tallies.setdefault((readout, temperature), Tally())
                    tally.add(last.bytes, seconds, last.round_trips)
            began = time.perf_counter()
            pipeline.write(prompt, count, 1.0, seed)
            plain.add(count, time.perf_counter() - began, count)
            print(f"prompt {seed + 1} of {len(prompts)}", file=sys.stderr, flush=True)
        events = [f"{event.kind}: {event.text}" for event in client.events]
    return [
        {
            "mode": {"parallel": exact}.get(readout, readout),
            "temperature": temperature,
            "bytes": count,
            "ours": asdict(tally),
            "pipeline": asdict(plain),
            "events": events,
        }
        for (readout, temperature), tally in tallies.items()
    ]


def _wait_for_drafter(client: SwarmClient, draft: str) -> None:
    """Fetching a block to draft with is done once for each client, beside its first texts; it is not measured here."""
    deadline = time.monotonic() + 120
    while draft == "block" and not any(event.kind == "drafting" for event in client.events):
        if time.monotonic() > deadline:
            raise TimeoutError("the block to draft with did not come in two minutes")
        time.sleep(0.1)


def main() -> int:
    """Read the plan, write the rows."""
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("plan", type=Path)
    options = top.parse_args()
    plan = json.loads(options.plan.read_text())
    pipeline = Pipeline(plan["first"], plan["last"], plan["context"])
    pipeline.write(bytes.fromhex(plan["prompts"][0]), 4, 1.0, 0)
    rows = [row for count in plan["lengths"] for row in measure(plan | {"bytes": count}, pipeline)]
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
