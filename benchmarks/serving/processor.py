"""Where volunteers' processor time goes: training, answers, the event loop, the daemon. Linux only (``/proc``)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from blockswarm.peer.node import Node

TICKS = os.sysconf("SC_CLK_TCK")
KINDS = ("training", "loop", "other", "daemon")

BURN = """
import sys, time
share, until = float(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.02 * share:
        sum(range(200))
    time.sleep(max(0.0, began + 0.02 - time.monotonic()))
"""
"""As much of a core as is asked for, in pieces of some milliseconds as a caller's."""


def spent(nodes: Sequence[Node]) -> dict[str, float]:
    """Processor seconds so far of all ``nodes`` together.

    Returns
    -------
    dict
        ``training`` (the training threads, which are the only nice ones), ``loop`` (main threads: event loop, requests
        read and answers written), ``other`` (all other threads: answers computed, hashing, codecs) and ``daemon``.
    """
    found = dict.fromkeys(KINDS, 0.0)
    for node in nodes:
        for kind, seconds in _threads(node.process.pid).items():
            found[kind] += seconds
        for child in node.family():
            with contextlib.suppress(OSError):
                found["daemon"] += sum(_threads(child.pid).values())
    return found


def _threads(pid: int) -> dict[str, float]:
    found = dict.fromkeys(KINDS, 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            values = (task / "stat").read_text().rpartition(")")[2].split()
            seconds = (int(values[11]) + int(values[12])) / TICKS
            base = os.getpriority(os.PRIO_PROCESS, pid)
            kind = "loop" if int(task.name) == pid else "training" if int(values[16]) > base else "other"
            found[kind] += seconds
    return found


@contextlib.contextmanager
def burning(cores: float, seconds: float) -> Iterator[None]:
    """Take so much processor time as a stranger's program would, for so long; waits for the end."""
    processes = []
    try:
        while cores > 0.01:
            command = [sys.executable, "-c", BURN, str(min(1.0, cores)), str(seconds)]
            processes.append(subprocess.Popen(command))
            cores -= 1.0
        began = time.monotonic()
        yield
        time.sleep(max(0.0, began + seconds - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()
