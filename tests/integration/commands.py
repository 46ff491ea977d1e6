"""Commands run to their end as a user runs them, and what every refusal must look like."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.integration.small import PATIENCE

PROGRAM = ("-m", "blockswarm")
_MARK = "BLOCKSWARM_COMMAND"


class Ended:
    """A command that has ended.

    Attributes
    ----------
    code : int
        Exit code.
    out, err : str
        What it printed.
    left : list of str
        Processes it left behind.
    files : list of Path
        What it left in the folder for temporary files.
    """

    def __init__(self, code: int, out: str, err: str, left: list[str], files: list[Path]) -> None:
        self.code = code
        self.out = out
        self.err = err
        self.left = left
        self.files = files

    def refusal(self, code: int = 1) -> str:
        """The one line of a refusal with this exit code; asserts that it is one, and that nothing stays behind."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert "this is a bug" not in lines[0]
        assert "Traceback" not in self.out
        assert self.left == []
        assert self.files == []
        return lines[0]


def run_command(
    folder: Path,
    *arguments: str,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] = os.environ,
    timeout: float = PATIENCE,
) -> Ended:
    """Run ``blockswarm arguments…`` in ``folder``; one that does not end in time is killed, and the test fails."""
    mark = uuid.uuid4().hex
    temporary = folder / "t"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env={**environment, _MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{' '.join(arguments)}: no end within {timeout:g} s\n{out}\n{err}") from None
    left = [" ".join(member.cmdline()) for member in _members(mark)]
    return Ended(process.returncode, out, err, left, sorted(temporary.iterdir()))


def _members(mark: str, patience: float = 2.0) -> list[psutil.Process]:
    """Processes that carry ``mark``; what is about to end gets a moment."""
    deadline = time.monotonic() + patience
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue  # it ended, or belongs to somebody else
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
