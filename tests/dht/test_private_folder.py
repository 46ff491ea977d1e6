"""Folders for sockets: private, removed, and swept after their owner was killed."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from blockswarm.dht.private_folder import PrivateFolder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An own temporary folder, short enough for sockets (pytest's are not)."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="bs") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


def test_the_folder_is_private_and_goes_away(temporary):
    folder = PrivateFolder.create()
    assert folder.path.parent == temporary
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "socket").touch()
    folder.remove()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_a_path_too_long_for_sockets_is_avoided(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = PrivateFolder.create()
    try:
        assert folder.path.parent.as_posix() == "/tmp"
    finally:
        folder.remove()


def test_the_folder_of_a_killed_process_is_swept_and_a_living_ones_is_not(temporary):
    living = PrivateFolder.create()
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]; "
        "from blockswarm.dht.private_folder import PrivateFolder; "
        "print(PrivateFolder.create().path, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(temporary)], capture_output=True, text=True, check=False)
    assert Path(killed.stdout.strip()).is_dir()
    foreign = temporary / "blockswarm-p2pd-notes"
    foreign.mkdir()
    (foreign / "lock").touch()
    other = PrivateFolder.create()
    assert set(temporary.iterdir()) == {living.path, other.path, foreign}
    living.remove()
    other.remove()
