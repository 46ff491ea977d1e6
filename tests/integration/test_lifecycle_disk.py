"""A full disk costs a volunteer its newest checkpoint, and nothing else."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from blockswarm.peer.checkpoint import Checkpoint, CheckpointFolder
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from tests.integration.small import PATIENCE, peer_id, story, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

SAVES_OFTEN = (str(Path(__file__).with_name("odd_machine.py")), "quick-saves")
DISK_BYTES = 4 << 20


class SmallDisk:
    """A folder on a disk of its own that can be filled up: a tmpfs, for which one must be root and allowed to mount.

    Elsewhere the volunteer's process is forbidden to write files as large as a checkpoint, which ends its writes in the
    same place with another error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        try:
            self.mounted = subprocess.run(mount, capture_output=True).returncode == 0
        except OSError:
            self.mounted = False
        self.words = "No space left on device" if self.mounted else "File too large"

    def fill(self, node: Node, largest: int) -> None:
        """Let no file of ``largest`` bytes fit any more, while ``node`` runs."""
        if self.mounted:
            with (self.folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 16)):
                    pass
        else:
            unlimited = resource.RLIM_INFINITY
            psutil.Process(node.process.pid).rlimit(resource.RLIMIT_FSIZE, (largest - 1, unlimited))

    def free(self) -> None:
        """Make room again. A process that was limited stays so."""
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Take the disk away, with what is on it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    try:
        yield disk
    finally:
        disk.close()


def newest(swarm: LocalSwarm, state: Path) -> Checkpoint:
    """The newest checkpoint in a state folder; it and all others are intact."""
    found = CheckpointFolder(state).load_newest(swarm.manifest)
    assert found.checkpoint is not None
    assert found.skipped == ()
    return found.checkpoint


def test_training_goes_on_when_the_disk_is_full(start_swarm: Callable[..., LocalSwarm], disk: SmallDisk) -> None:
    swarm, state = start_swarm(), disk.folder / "state"
    node = swarm.start_volunteer(0, "--state-dir", str(state), program=SAVES_OFTEN)
    checkpoints = state / "checkpoints"
    saved = wait_until(lambda: sorted(checkpoints.glob("round-*[1-9].safetensors")), "first checkpoint", nodes=[node])
    disk.fill(node, saved[0].stat().st_size)

    # The disk may fill up behind a checkpoint: then what a merge would need is the first to find no room.
    words = f"cannot save the checkpoint: {disk.words}"
    error = node.wait_event("error", lambda event: words in event["message"], timeout=PATIENCE)
    kept = newest(swarm, state)
    assert f"the one of round {kept.round} is kept, training goes on" in error["message"]
    node.wait_event("round", lambda event: event["committed"] and event["time"] > error["time"], timeout=PATIENCE)
    node.kill(signal.SIGINT)
    assert node.wait_ended(timeout=PATIENCE) == 0, story([node])
    assert node.find("error", lambda event: event["message"].startswith("the last checkpoint was not written: "))
    assert newest(swarm, state).round == kept.round
    assert not list(checkpoints.glob(".*"))  # nothing half-written

    disk.free()
    again = swarm.start_volunteer(0, "--state-dir", str(state), name=node.name, program=SAVES_OFTEN)
    assert peer_id(again) == peer_id(node)
    resumed = again.wait_event(
        "round", lambda event: event["subject"] == 0 and bool(event["committed"]), timeout=PATIENCE
    )
    assert resumed["certified_samples"] > kept.block.samples
    wait_until(lambda: newest(swarm, state).round > kept.round, "checkpoint on the disk with room", nodes=[again])
