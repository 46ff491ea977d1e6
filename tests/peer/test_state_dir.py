"""The state folder belongs to one running process, whoever comes at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blockswarm.peer.state_dir import StateDirError, claim_free_state_dir, claim_state_dir

HOLD = """
import sys
from pathlib import Path
from blockswarm.peer.state_dir import claim_free_state_dir
print(claim_free_state_dir(Path(sys.argv[1]), "peer").name, flush=True)
sys.stdin.read()
"""


def start_holder(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_folder_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    folder = claim_state_dir(tmp_path / "deep" / "state")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_claiming_again_in_the_same_process_is_harmless(tmp_path: Path) -> None:
    assert claim_state_dir(tmp_path / "state") == claim_state_dir(tmp_path / "state")


def test_peers_started_in_the_same_instant_each_get_their_own(tmp_path: Path) -> None:
    holders = [start_holder(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(line, holders))
    assert sorted(names) == ["peer-1", "peer-2", "peer-3", "peer-4"]
    for holder in holders:
        holder.communicate(timeout=20)


def test_a_killed_peers_folder_is_taken_up_again(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    assert line(first) == "peer-1"
    with pytest.raises(StateDirError, match=r"peer-1: another running peer uses this state folder.*state_dir"):
        claim_state_dir(tmp_path / "peer-1")
    first.kill()
    first.communicate(timeout=20)
    assert claim_free_state_dir(tmp_path, "peer") == tmp_path / "peer-1"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateDirError, match=r"file/state: cannot write to the state folder: Not a directory"):
        claim_state_dir(tmp_path / "file" / "state")
