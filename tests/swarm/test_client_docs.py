"""Every example of docs/client.md runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_documentation_runs(swarm: Any, tmp_path: Path, number: int) -> None:
    (tmp_path / "bootstrap_peers.txt").write_text("\n".join(swarm.info["peers"]) + "\n")
    run = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]], cwd=tmp_path, capture_output=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stderr == b"" and run.stdout
