"""Watching a real swarm from outside: its rounds, and what it has learned."""

from __future__ import annotations

import json
import subprocess
import time

from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Launch
from blockswarm.swarm.policy.phases import round_in_progress

REPORT_SECONDS = 2.0
"""After a round's close, until the volunteers' reports of it are written."""

CE_BYTES = 4096
CE_SECONDS = 300.0


def round_now(swarm: LocalSwarm) -> int:
    """The round under way."""
    return round_in_progress(time.time(), swarm.manifest.genesis_time, swarm.manifest.rounds.seconds)


def wait_for_reports_of(swarm: LocalSwarm, number: int) -> None:
    """Until a round has closed, and its reports are written."""
    close = swarm.manifest.genesis_time + number * swarm.manifest.rounds.seconds
    time.sleep(max(0.0, close + REPORT_SECONDS - time.time()))


def heldout_ce(swarm: LocalSwarm, launch: Launch = subprocess.Popen) -> float:
    """Cross-entropy of what the swarm serves now: the parallel readout on held-out text, nats per byte."""
    options = ("--peers-file", str(swarm.peers_file), "--max-bytes", str(CE_BYTES), "--readout", "parallel", "--json")
    done = swarm.command("evaluate", *options, timeout=CE_SECONDS, launch=launch)
    return float(json.loads(done.stdout)["ce"]["parallel"])
