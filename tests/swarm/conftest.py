"""Running a small swarm and clients of it, each in processes of their own.

pytest itself imports neither hivemind nor libp2p: tests of other folders need the one, the client needs the other, and
one process can only have one of them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

PRELUDE = """
import asyncio, json, sys, threading, time, warnings
import numpy as np
from blockswarm.swarm import AsyncSwarmClient, SwarmClient
from blockswarm.swarm.errors import *

info = json.loads(sys.stdin.readline())
peers = info["peers"]

def tell(**command):
    "Have the swarm do something, now."
    print(json.dumps({"tell": command}), flush=True)
    return json.loads(sys.stdin.readline())

def kinds(client):
    return [event.kind for event in client.events]

def result(**values):
    print(json.dumps({"result": values}), flush=True)
"""


class SmallSwarm:
    """A running ``small_swarm.py``."""

    def __init__(self, script: str = "small_swarm.py") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.info: dict[str, Any] = {}

    def start(self, *holders: str) -> SmallSwarm:
        """Bring the holders up; ``"1a"`` is holder a of block 1."""
        self.info = self.do("start", holders=list(holders))
        return self

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a command."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line or '{"error": "the swarm process ended"}')
        if "error" in answer:
            raise AssertionError(f"{what} {arguments}: {answer['error']}")
        return answer

    def client(self, code: str, *, timeout: float = 60.0) -> dict[str, Any]:
        """Run ``code`` in a process of its own and return what it gave to ``result(…)``.

        The code finds ``peers``, ``info``, ``tell(do=…)`` and the names of ``PRELUDE``.
        """
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        found: dict[str, Any] | None = None
        try:
            process.stdin.write(json.dumps(self.info) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if "result" in message:
                    found = message["result"]
                    continue
                command = message["tell"]
                process.stdin.write(json.dumps(self.do(command.pop("do"), **command)) + "\n")
                process.stdin.flush()
            process.wait(timeout)
        finally:
            if process.poll() is None:
                process.kill()
            complaints = process.stderr.read()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        assert process.returncode == 0 and found is not None, complaints
        assert complaints == "", complaints
        return found

    def stop(self) -> None:
        """End it and its daemons."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def swarm_script() -> type[SmallSwarm]:
    """``swarm_script("odd_peer.py")`` runs another script that speaks the same command language."""
    return SmallSwarm


@pytest.fixture(scope="session")
def swarm_process() -> Iterator[SmallSwarm]:
    """Two holders of each of three blocks."""
    running = SmallSwarm()
    try:
        yield running.start("0a", "0b", "1a", "1b", "2a", "2b")
    finally:
        running.stop()


@pytest.fixture
def swarm(swarm_process: SmallSwarm) -> SmallSwarm:
    """The same, with everybody alive and well."""
    swarm_process.info = swarm_process.do("reset")
    return swarm_process


@pytest.fixture
def new_swarm() -> Iterator[Callable[..., SmallSwarm]]:
    """Make a swarm of one's own, to spoil: ``new_swarm("0a", "1a", "2a")``."""
    made: list[SmallSwarm] = []

    def make(*holders: str) -> SmallSwarm:
        made.append(SmallSwarm())
        return made[-1].start(*holders)

    yield make
    for running in made:
        running.stop()
