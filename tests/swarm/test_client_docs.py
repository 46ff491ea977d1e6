"""Every example of docs/client.md runs as it stands."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

GATEWAY = "127.0.0.1:8000"
"""Where the examples find one; the tests', which take a free port, stand elsewhere."""


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[str]:
    """A gateway started in ``folder`` as the page says: its host and port."""
    command = [sys.executable, "-m", "blockswarm", "gateway", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1].split("/")[2]
        finally:
            process.terminate()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_documentation_runs(swarm: Any, tmp_path: Path, number: int) -> None:
    (tmp_path / "bootstrap_peers.txt").write_text("\n".join(swarm.info["peers"]) + "\n")
    with gateway(tmp_path) if GATEWAY in EXAMPLES[number] else contextlib.nullcontext(GATEWAY) as address:
        example = EXAMPLES[number].replace(GATEWAY, address)
        run = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, timeout=100, check=False
        )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stderr == b"" and run.stdout
