"""The suite's cells of the fault matrix, on one swarm of real p2pd; ``python -m tests.faults`` has the others.

It runs in a process of its own: where replicas are, py-libp2p cannot be loaded, and other tests here are clients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import SUITE

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cells showed."""
    path = tmp_path_factory.mktemp("faults") / "report.json"
    command = [sys.executable, "-m", "tests.faults", "--suite", "--report", str(path)]
    where = {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, env=os.environ | where)
    assert path.exists(), done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found | {"said": done.stderr, "ended": done.returncode}


@pytest.mark.parametrize("name", SUITE)
def test_one_state_in_time_and_the_culprit_named(name: str, report: dict[str, Any]) -> None:
    (cell,) = (cell for cell in report["cell"] if cell["name"] == name)
    assert cell["broken"] == []


def test_rounds_with_a_minority_at_fault_commit_and_those_after_them(report: dict[str, Any]) -> None:
    assert report["ended"] == 0, report["said"]
    assert report["commit_rate"]["calm"] >= 0.95 and report["commit_rate"]["fault"] >= 0.8
