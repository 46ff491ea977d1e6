"""Clients of a running swarm, each in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockswarm.peer.local import LocalSwarm
from tests.integration.small import PATIENCE

SCRIPT = Path(__file__).with_name("client_process.py")


class Answer:
    """What a client says to one request.

    Attributes
    ----------
    result : Any
        What the call returned.
    error, text, block : str or int, optional
        Kind and text of the error it raised instead, and the block a `NoHolderError` names.
    warnings : list of str
        What it warned of.
    last : dict
        Report on the latest call, as in ``stats.last``.
    events : list of dict
        Everything that happened so far.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.result: Any = given.get("result")
        self.error: str | None = given.get("error")
        self.text: str = given.get("text", "")
        self.block: int | None = given.get("block")
        self.warnings: list[str] = given.get("warnings", [])
        self.last: dict[str, Any] = given.get("last") or {}
        self.events: list[dict[str, Any]] = given.get("events", [])


class Client:
    """A client process that waits for the next request. Made by `connected`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.answer()

    def do(self, what: str, **arguments: Any) -> Answer:
        """Have it call a method of `client_process.Session`, and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Answer:
        """The next thing it says."""
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the client said nothing for {PATIENCE:g} s") from None
        assert line, f"the client ended (exit code {self._process.wait(PATIENCE)})"
        return Answer(json.loads(line))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def connected(swarm: LocalSwarm, *peers: str) -> Iterator[Client]:
    """A client connected through ``peers``, by default those in the swarm's peers file."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *(peers or [str(swarm.peers_file)])],
        env={**os.environ, **swarm.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
