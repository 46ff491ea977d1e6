"""One blockswarm process driven from outside: started, followed through its JSON log, signalled, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from blockswarm.errors import BlockswarmError
from blockswarm.peer.wording import Event

POLL_SECONDS = 0.05
"""How often a log file is looked at while waiting for an event."""

Launch = Callable[..., "subprocess.Popen[bytes]"]
"""How a process is started: takes what `subprocess.Popen` takes. Another one can start it on another host."""

PROGRAM = ("-m", "blockswarm")
"""The ``blockswarm`` command, as arguments of the interpreter."""

# Set just before the program takes the process over, and kept across that: when the process that started us dies,
# however it dies, we get SIGINT and leave in good order. Nothing is left running behind a killed demo or test.
_ATTACH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 2, 0, 0, 0)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class LocalError(BlockswarmError):
    """A process of a local swarm did not do what was waited for; the message ends with what it last said."""


class LogTail:
    """The complete lines of a growing file of JSON objects, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A process that goes on where an earlier one stopped appends to its log; that one's events are not news.
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> list[Event]:
        """Objects of the lines completed since the last call; a half-written line waits for its end."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
        except FileNotFoundError:
            return []
        complete = new[: new.rfind(b"\n") + 1]
        self._position += len(complete)
        return [json.loads(line) for line in complete.splitlines() if line.strip()]


class Node:
    """A running ``blockswarm`` command with a JSON log, in a process group of its own.

    Parameters
    ----------
    name : str
        What it is called in messages and file names.
    arguments : sequence of str
        Command line after ``blockswarm``; ``--json-log`` is added.
    folder : Path
        Working folder, also of the log (``<name>.jsonl``) and the output (``<name>.out``).
    environment : mapping
        Variables to set on top of this process's.
    program : sequence of str
        Arguments of the interpreter that start the command; tests run it with faults built in.
    launch : callable
        See `Launch`. What it starts must be a child of this process in the end.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = PROGRAM,
        launch: Launch = subprocess.Popen,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.jsonl"
        self.output = folder / f"{name}.out"
        self.events: list[Event] = []
        self.ended_at: float | None = None
        """Unix seconds when the process was first seen to have ended."""
        self._tail = LogTail(self.log)
        self._family: dict[int, psutil.Process] = {}
        command = [sys.executable, *program, *arguments, "--json-log", str(self.log)]
        with self.output.open("ab") as output:
            self.process = launch(
                [sys.executable, "-S", "-E", "-c", _ATTACH, str(os.getpid()), *command],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process has not ended (a stopped one runs)."""
        if self.process.poll() is None:
            return True
        self.ended_at = self.ended_at or time.time()
        return False

    def poll(self) -> list[Event]:
        """Read what is new in the log, remember the present children, and return the new events."""
        self.family()
        new = self._tail.read()
        self.events += new
        return new

    def find(self, name: str, predicate: Callable[[Event], bool] | None = None) -> Event | None:
        """The first event so far called ``name`` that satisfies ``predicate``."""
        self.poll()
        return next((event for event in self.events if _matches(event, name, predicate)), None)

    def wait_event(self, name: str, predicate: Callable[[Event], bool] | None = None, *, timeout: float) -> Event:
        """The first event called ``name`` that satisfies ``predicate``, among those so far and those to come.

        Raises
        ------
        LocalError
            After ``timeout`` seconds, or when the process ends before.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.running
            if (event := self.find(name, predicate)) is not None:
                return event
            if ended:
                raise LocalError(
                    f"{self.name} ended (exit code {self.process.returncode}) before '{name}': {self.last_words()}"
                )
            if time.monotonic() > deadline:
                raise LocalError(f"{self.name}: no '{name}' within {timeout:g} s: {self.last_words()}")
            time.sleep(POLL_SECONDS)

    def wait_ended(self, timeout: float) -> int:
        """The exit code; raises `LocalError` if the process still runs after ``timeout`` seconds."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise LocalError(f"{self.name} still runs after {timeout:g} s: {self.last_words()}") from error
        self.ended_at = self.ended_at or time.time()
        self.poll()
        return code

    def kill(self, number: signal.Signals = signal.SIGKILL, *, family: bool = False) -> None:
        """Send a signal to the process, and with ``family`` to all its descendants (its p2pd) as well."""
        members = self.family()
        if self.running:
            self.process.send_signal(number)
        if family:
            for member in members:
                with contextlib.suppress(psutil.Error):  # it ended meanwhile
                    member.send_signal(number)

    def family(self) -> list[psutil.Process]:
        """Every descendant seen so far that still runs; it outlives the process itself if it was left behind."""
        with contextlib.suppress(psutil.Error):  # once it has ended, what was seen before still counts
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._family.setdefault(child.pid, child)
        self._family = {pid: child for pid, child in self._family.items() if alive(child)}
        return list(self._family.values())

    def last_words(self) -> str:
        """The last line of its output, or its last event with a message."""
        lines = self.output.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
        self.poll()
        messages = [str(event["message"]) for event in self.events if "message" in event]
        return messages[-1] if messages else "it said nothing"


def _matches(event: Event, name: str, predicate: Callable[[Event], bool] | None) -> bool:
    return event.get("event") == name and (predicate is None or predicate(event))


def alive(process: psutil.Process) -> bool:
    """Whether ``process`` runs; a zombie, which only waits to be counted, does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
