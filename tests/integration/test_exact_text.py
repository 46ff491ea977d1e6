"""A few texts of `make soak-serving`: the same to the byte, from real holders that are killed and exchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.small import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TEXTS = 15


def test_texts_are_those_of_plain_decoding_whatever_becomes_of_the_holders(tmp_path: Path) -> None:
    report, journal = tmp_path / "report.json", tmp_path / "journal"
    command = [sys.executable, "-m", "tests.soak.serving", "--texts", str(TEXTS)]
    done = subprocess.run(
        [*command, "--report", str(report), "--journal", str(journal)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]), "PYTHONSAFEPATH": "1"},
        timeout=2 * PATIENCE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert (found["cells"], found["wrong"]) == (TEXTS, [])
    assert found["bytes_compared"] == TEXTS * found["settings"]["bytes"]
    for disturbance in ("killed", "swapped", "commits"):
        assert found["by"]["disturbance"][disturbance]["struck"] > 0, f"nothing was {disturbance}"
    assert len(journal.read_text().splitlines()) == 1 + TEXTS
    assert "| bytes compared |" in report.with_suffix(".md").read_text()
