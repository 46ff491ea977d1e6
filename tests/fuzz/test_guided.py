"""Coverage leads the way for a moment: the fuzzer runs, reaches more than it began with, and finds nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 400
"""For each target: with this seed the same inputs every time. `make fuzz` goes on for as long as it is told to."""

ROOT = Path(__file__).parents[2]

HAS_WHEEL = sys.version_info < (3, 14) and (sys.platform, platform.machine()) == ("linux", "x86_64")
needs_atheris = pytest.mark.skipif(
    not HAS_WHEEL,
    reason="Atheris cannot be installed here: it has wheels for CPython 3.11 to 3.13 on Linux x86_64 only, and needs "
    "clang's libFuzzer to be built; tests/fuzz/test_decoders.py goes through the same decoders without it",
)
"""Where there is a wheel, `make install` brings it: there these tests run, or fail and say what is missing."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """``python -m tests.fuzz`` in a process of its own, which must import nothing before it is instrumented."""
    where = os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]) if (ROOT / ".dev").exists() else str(ROOT)
    environment = os.environ | {"PYTHONPATH": where, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz", *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.timeout(300)
@needs_atheris
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    told = tmp_path / "outcomes.json"
    ended = run("--runs", str(RUNS), "--seed", "1", "--folder", str(tmp_path), "--json", str(told))
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    outcomes = json.loads(told.read_text())
    assert len(outcomes) > 20
    for outcome in outcomes:
        assert outcome["runs"] >= RUNS and outcome["coverage"] > 0 and outcome["inputs"] > 0, outcome


@pytest.mark.timeout(120)
@needs_atheris
def test_what_breaks_a_promise_is_saved_and_told(tmp_path: Path) -> None:
    ended = run("--target", "broken", "--runs", "100000", "--seed", "1", "--folder", str(tmp_path))
    assert ended.returncode == 1, ended.stdout + ended.stderr[-2000:]
    (found,) = (tmp_path / "findings" / "broken").iterdir()
    assert found.read_bytes().startswith(b"no!") and str(found) in ended.stdout
    assert "this breaks it" in (tmp_path / "broken.log").read_text()


@needs_atheris
def test_an_unknown_target_is_named() -> None:
    ended = run("--target", "nothing")
    assert ended.returncode == 2 and "no target named nothing" in ended.stderr
