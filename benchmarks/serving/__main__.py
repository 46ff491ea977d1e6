"""How fast text comes from a swarm over slow lines, against a plain autoregressive pipeline of the same blocks.

    sudo -E python -m benchmarks.serving --json

Four hosts (network namespaces, see `benchmarks/hosts`): a client, and three volunteers with one block each. They train
for ``--samples`` sequences a block over free lines, then they only serve, and the lines become slow. Modes:

``exact``      the parallel readout; drafts come from one block that the client runs itself (``--draft``)
``exact+counts`` the same in a swarm of its own, trained alike, whose target has n-gram counts of its training text
               (``--counts-weight``): a volunteer serves them, and the client has their file and drafts from it, too
``sweep``      the paper's readout, z from holder to holder; drafts as above
``one-sweep``  all bytes in one traversal; a timing, the text has no quality

The pipeline has the same blocks on the same hosts, at their initial weights: a byte travels client → stage → stage →
stage → client, keys and values are cached, connections are open, nothing else goes over the wire. It is measured after
each prompt, in the same process as the swarm's client. Its speed depends on lines and shapes alone. Both sides count
from the call to the last byte, prompt included, with connections made and the block to draft with at hand.

``--shapes 512x4 1024x4`` adds the paper's systems table: ``one-sweep`` through blocks of that shape whose weights are
random (they are held after a single round), since only lines and arithmetic matter to it.

``speedup`` is bytes/s over the pipeline's bytes/s; ``traversals`` are the times holders were waited for, one after the
other, all prompts together; ``load_1m`` the machine's load before and after a round trip time's rows, of which the
benchmark itself is a part. Needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import FREE, Link, World, why_not
from benchmarks.machine import machine, settings
from benchmarks.watching import heldout_ce
from blockswarm.model.config import SIZES
from blockswarm.model.corpus import open_corpus
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.peer.local import LocalSwarm
from blockswarm.swarm.counts.files import describe
from blockswarm.swarm.manifest import create_manifest

CLIENT = 0
FIRST_PORT = 7100
START_SECONDS = 120.0
TRAIN_SECONDS = 1800.0
CLIENT_SECONDS = 3600.0
PROMPT_BYTES = 48
SHAPE_ROUND_SECONDS = 60.0
COUNTED = "exact+counts"
MODES = ["exact", COUNTED, "sweep", "one-sweep"]
READOUTS = {"exact": "parallel", COUNTED: "parallel"}
"""What a mode is called by clients, where that is another word."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--rtts", nargs="+", type=float, default=[80.0, 0.0, 30.0, 200.0], help="round trips, ms")
    top.add_argument("--rate", type=float, default=20.0, help="Mbit/s of each host, each way (default 20)")
    top.add_argument("--lengths", nargs="+", type=int, default=[64, 128], help="bytes to write")
    top.add_argument("--temperatures", nargs="+", type=float, default=[1.0, 0.0])
    top.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    top.add_argument("--draft", default="block", help="who guesses ahead: block, ngram, none (default block)")
    top.add_argument("--prompts", type=int, default=3, help="texts of each kind (default 3)")
    top.add_argument("--size", choices=list(SIZES), default="tiny")
    top.add_argument("--samples", type=int, default=6400, help="trained sequences of each block (default 6400)")
    top.add_argument("--shapes", nargs="*", default=[], help="one-sweep of untrained blocks too, as 512x4: dim, layers")
    top.add_argument("--counts-weight", type=float, default=0.5, help="share of n-gram counts (default 0.5)")
    top.add_argument("--counts-order", type=int, default=6, help="bytes of context of these counts (default 6)")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--data", default="docs")
    top.add_argument("--json", action="store_true", help="print one JSON object last")
    options = top.parse_args(arguments)
    for shape in options.shapes:
        if not re.fullmatch(r"[1-9][0-9]{0,4}x[1-9][0-9]?", shape):
            top.error(f"shape {shape!r}: must be DIMxLAYERS, for instance 512x4")
    return options


class Bench:
    """A trained swarm and the pipeline on one world."""

    def __init__(
        self, options: argparse.Namespace, size: str, modes: list[str], world: World, swarm: LocalSwarm
    ) -> None:
        self.options, self.size, self.modes, self.world, self.swarm = options, size, modes, world, swarm
        self.model = swarm.manifest.model
        self.stages: list[subprocess.Popen[bytes]] = []
        self.counts: Path | None = None

    def serve_counts(self, file: Path) -> None:
        """Have a volunteer own the counts, beside one who trains; the client has their file, too."""
        host = self.world[1]
        options = ("--block", "counts", "--counts", str(file))
        self.swarm.start_volunteer(None, *options, listen=host.listen, launch=host.popen).wait_event(
            "ready", timeout=START_SECONDS
        )
        self.counts = file

    def train(self) -> None:
        """Until every block has its samples."""
        self.swarm.start_bootstrap(listen=self.world[1].listen, launch=self.world[1].popen, wait=START_SECONDS)
        nodes = []
        for block in range(self.model.blocks):
            host = self.world[1 + block]
            nodes.append(self.swarm.start_volunteer(block, listen=host.listen, launch=host.popen))
        for node in nodes:
            node.wait_event("trained", timeout=TRAIN_SECONDS)

    def shape(self, rtt: float) -> None:
        """Make every line as slow as this."""
        line = Link(delay_ms=rtt / 2)
        for a in range(len(self.world.hosts)):
            for b in range(a):
                self.world.set_link(a, b, line)
            rate = Link(rate_mbit=self.options.rate)
            self.world.set_uplink(a, rate)
            self.world.set_downlink(a, rate)

    def start_pipeline(self) -> tuple[str, str]:
        """Stages on the hosts of their blocks; where the first and the last listen."""
        blocks = self.model.blocks
        places = [f"{self.world[1 + block].address}:{FIRST_PORT + block}" for block in range(blocks)]
        for block in reversed(range(blocks)):
            command = [sys.executable, "-m", "benchmarks.serving.stage", "--manifest", str(self.swarm.manifest_file)]
            command += ["--block", str(block), "--listen", places[block]]
            command += ["--next", places[block + 1]] if block + 1 < blocks else []
            stage = self.world[1 + block].popen(command, stdout=subprocess.PIPE)
            self.stages.append(stage)
            assert stage.stdout is not None
            if stage.stdout.readline() != b"ready\n":
                raise RuntimeError(f"stage {block} of the pipeline did not start")
        return places[0], places[-1]

    def end_pipeline(self) -> None:
        """They end by themselves when their feeder has gone; not to wait for ever, they are told."""
        for stage in self.stages:
            stage.terminate()
            stage.wait(10)
        self.stages.clear()

    def rows(self, rtt: float) -> list[dict[str, Any]]:
        """Everything that is measured at one round trip time."""
        self.shape(rtt)
        options = self.options
        heldout = open_corpus(options.data, context=self.model.context).heldout
        places = np.random.default_rng(options.seed).integers(0, len(heldout) - PROMPT_BYTES, options.prompts)
        plan = {
            "peers": str(self.swarm.peers_file),
            "context": self.model.context,
            "prompts": [heldout[place : place + PROMPT_BYTES].tobytes().hex() for place in places],
            "readouts": [READOUTS.get(mode, mode) for mode in self.modes],
            "temperatures": options.temperatures,
            "lengths": options.lengths,
            "counts": str(self.counts) if self.counts else None,
            "draft": options.draft if self.modes != ["one-sweep"] else "none",
        }
        file = self.swarm.folder / "plan.json"
        command = [sys.executable, "-m", "benchmarks.serving.client", str(file)]
        try:
            plan["first"], plan["last"] = self.start_pipeline()
            file.write_text(json.dumps(plan))
            done = self.world[CLIENT].run(command, timeout=CLIENT_SECONDS, stderr=None)
        finally:
            self.end_pipeline()
        return [{"size": self.size, **row_of(rtt, each)} for each in json.loads(done.stdout)]


def row_of(rtt: float, found: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    ours, plain = found["ours"], found["pipeline"]
    rate, plain_rate = ours["bytes"] / ours["seconds"], plain["bytes"] / plain["seconds"]
    return {
        "rtt_ms": rtt,
        "mode": found["mode"],
        "temperature": found["temperature"],
        "bytes": found["bytes"],
        "bytes_per_s": round(rate, 2),
        "bytes_per_round_trip": round(ours["bytes"] / ours["traversals"], 3),
        "pipeline_bytes_per_s": round(plain_rate, 3),
        "speedup": round(rate / plain_rate, 2),
        "traversals": ours["traversals"],
        "events": found["events"],
    }


def told(words: str) -> None:
    """Progress."""
    print(words, file=sys.stderr, flush=True)


def run(
    options: argparse.Namespace, size: str, modes: list[str], folder: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows of one swarm, of a named size or an untrained shape; and what else is to be said of it.

    ``folder`` is for files that are needed for as long as this takes.
    """
    began = time.monotonic()
    trained = size in SIZES
    if trained:
        model = SIZES[size]
    else:
        dim, layers = map(int, size.split("x"))
        model = dataclasses.replace(SIZES["small"], dim=dim, layers=layers, heads=max(1, dim // 64))
    file, counts = Path(folder) / f"{size}.ngram", None
    if modes == [COUNTED]:
        text = open_corpus(options.data, context=model.context).train
        file.write_bytes(build_ngram_file(text, order=options.counts_order))
        counts = describe(file, options.counts_weight)
    manifest = create_manifest(
        name="serving",
        counts=counts,
        now=time.time(),
        size=model,
        data=options.data,
        round_seconds=10.0 if trained else SHAPE_ROUND_SECONDS,
        seed=options.seed,
        train_samples=options.samples if trained else 1,
        bandwidth=12.5e6,
    )
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"parameters": manifest.parameters(0), "trained": trained}
    with (
        World.build(1 + model.blocks, link=FREE, seed=1) as world,
        LocalSwarm(manifest=manifest, seed=options.seed) as swarm,
    ):
        bench = Bench(options, size, modes, world, swarm)
        told(f"{size} ({', '.join(modes)}): training {manifest.recipe.train_samples} sequences a block")
        bench.train()
        if counts is not None:
            bench.serve_counts(file)
        if trained:
            about["ce"] = heldout_ce(swarm, world[CLIENT].popen)
            told(f"{size}: held-out cross-entropy {about['ce']:.3f} nats per byte (parallel readout)")
        for rtt in options.rtts:
            before = os.getloadavg()[0]
            found = bench.rows(rtt)
            load = [round(before, 2), round(os.getloadavg()[0], 2)]
            for row in found:
                row["load_1m"] = load
                told(json.dumps(row))
            rows += found
        about |= {"bench": dataclasses.asdict(world.lateness()), "seconds": round(time.monotonic() - began)}
    return rows, about


def swarms(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """The sizes of the swarms that are needed, one after another, and the modes that each is measured in."""
    plain = [mode for mode in options.modes if mode != COUNTED]
    wanted = [(options.size, plain), (options.size, [mode for mode in options.modes if mode == COUNTED])]
    return [(size, modes) for size, modes in wanted if modes] + [(shape, ["one-sweep"]) for shape in options.shapes]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, then measure at every round trip time."""
    options = parse(arguments)
    if (reason := why_not()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size, modes in swarms(options):
            name = f"{size}+counts" if COUNTED in modes else size
            found, about[name] = run(options, size, modes, folder)
            rows += found
    if options.json:
        print(json.dumps({"rows": rows, "models": about, "settings": settings(options), "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
