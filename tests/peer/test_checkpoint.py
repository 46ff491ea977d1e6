"""A peer goes on where it stopped: from the newest intact checkpoint, saying what it passed over and why."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockswarm.model.config import ModelConfig
from blockswarm.peer.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest


def make_manifest(name: str, **choices: Any) -> Manifest:
    size = ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=8)
    return create_manifest(name=name, now=0.0, size=size, round_seconds=20.0, **choices)


MANIFEST = make_manifest("demo")


def checkpoint(round_number: int, block: int = 1) -> Checkpoint:
    rng = np.random.default_rng(round_number)

    def vector(subject: int) -> np.ndarray:
        return rng.standard_normal(MANIFEST.parameters(subject), dtype=np.float32)

    return Checkpoint(
        block=State.make(block, round_number, vector(block), samples=64 * round_number, certificate=b"\0signed"),
        embedding=State.make(EMBEDDING, round_number - 1, vector(EMBEDDING), samples=192 * round_number),
        theta=vector(block),
        live_embedding=vector(EMBEDDING),
        pending={block: 12.5, EMBEDDING: 3.0},
        moments={"exp_avg": vector(block)},
    )


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.folder.iterdir())


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Files cannot grow beyond ``limit`` bytes: the write fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_everything_saved_comes_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved = checkpoint(12)
    assert folder.save(saved, MANIFEST).name == "round-00000012.safetensors"
    resumed = folder.load_newest(MANIFEST)
    loaded = resumed.checkpoint
    assert loaded is not None
    assert resumed.skipped == ()
    for before, after in ((saved.block, loaded.block), (saved.embedding, loaded.embedding)):
        assert after.name == before.name
        assert (after.subject, after.samples, after.certificate) == (before.subject, before.samples, before.certificate)
        assert np.array_equal(after.values, before.values)
    assert np.array_equal(loaded.theta, saved.theta)
    assert np.array_equal(loaded.live_embedding, saved.live_embedding)
    assert np.array_equal(loaded.moments["exp_avg"], saved.moments["exp_avg"])
    assert loaded.pending == saved.pending
    assert loaded.theta.flags.writeable


def test_an_outer_momentum_comes_back_with_its_state_and_a_flipped_bit_of_it_is_noticed(tmp_path: Path) -> None:
    manifest = make_manifest("outer", outer="nesterov")
    plain = checkpoint(12)
    momentum = np.full_like(plain.block.values, 0.25)
    block = State.make(1, 12, plain.block.values, samples=64, momentum=momentum)
    table = State.make(EMBEDDING, 11, plain.embedding.values, samples=64, momentum=plain.embedding.values.copy())
    folder = CheckpointFolder(tmp_path)
    path = folder.save(replace(plain, block=block, embedding=table), manifest)
    loaded = folder.load_newest(manifest).checkpoint
    assert loaded is not None
    assert (loaded.block.digest, loaded.embedding.digest) == (block.digest, table.digest)
    assert loaded.block.momentum is not None and np.array_equal(loaded.block.momentum, momentum)
    whole = path.read_bytes()
    place = whole.index(momentum.tobytes())
    path.write_bytes(whole[: place + 5] + bytes([whole[place + 5] ^ 1]) + whole[place + 6 :])
    (reason,) = folder.load_newest(manifest).skipped
    assert reason.endswith("damaged (block does not hash to its digest)")


def test_a_checkpoint_without_the_momentum_that_its_run_has_is_passed_over(tmp_path: Path) -> None:
    manifest = make_manifest("outer", outer="nesterov")
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(12), manifest)
    assert folder.load_newest(manifest).checkpoint is None


def test_an_empty_or_absent_folder_has_nothing_to_resume(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "new").load_newest(MANIFEST).checkpoint is None


def test_the_newest_three_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2, 3, 4, 5):
        folder.save(checkpoint(number), MANIFEST)
    assert names(folder) == [f"round-0000000{number}.safetensors" for number in (3, 4, 5)]


def test_going_over_to_a_heavier_line_leaves_later_rounds_of_the_old_line_behind(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (10, 11, 12, 9):
        folder.save(checkpoint(number), MANIFEST)
    assert names(folder) == ["round-00000009.safetensors"]


@pytest.mark.parametrize("size", [0, 5, 100, 2000])
def test_a_truncated_checkpoint_is_passed_over_by_name(tmp_path: Path, size: int) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(1), MANIFEST)
    newest = folder.save(checkpoint(2), MANIFEST)
    newest.write_bytes(newest.read_bytes()[:size])
    resumed = folder.load_newest(MANIFEST)
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.round == 1
    assert len(resumed.skipped) == 1
    assert resumed.skipped[0].startswith("round-00000002.safetensors: damaged or half-written")


def test_one_flipped_bit_anywhere_in_the_arrays_is_noticed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(checkpoint(2), MANIFEST)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for position in np.linspace(header, len(whole) - 1, 40).astype(int):
        damaged = bytearray(whole)
        damaged[position] ^= 0x01
        path.write_bytes(damaged)
        resumed = folder.load_newest(MANIFEST)
        assert resumed.checkpoint is None
        assert "damaged" in resumed.skipped[0]


def test_any_byte_of_the_header_may_be_wrong_and_nothing_wrong_is_resumed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved = checkpoint(2)
    path = folder.save(saved, MANIFEST)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for position in range(0, header, 5):
        damaged = bytearray(whole)
        damaged[position] ^= 0x01
        path.write_bytes(damaged)
        resumed = folder.load_newest(MANIFEST)
        if resumed.checkpoint is not None:  # the padding at the header's end carries nothing
            assert resumed.checkpoint.block.head == saved.block.head
        else:
            assert len(resumed.skipped) == 1


def test_a_checkpoint_of_another_run_is_passed_over_with_its_name(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(1), MANIFEST)
    other = make_manifest("elsewhere")
    folder.save(checkpoint(9), other)
    resumed = folder.load_newest(MANIFEST)
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.round == 1
    assert resumed.skipped == (f"round-00000009.safetensors: of another run ({other.run_id})",)


def test_foreign_files_are_no_checkpoints(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(1), MANIFEST)
    (folder.folder / "notes.txt").write_text("mine", encoding="utf-8")
    (folder.folder / "round-00000007.safetensors").mkdir()
    resumed = folder.load_newest(MANIFEST)
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.round == 1
    folder.save(checkpoint(2), MANIFEST)
    assert "notes.txt" in names(folder)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(checkpoint(3), MANIFEST)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse: a terabyte in name only
    assert folder.load_newest(MANIFEST).skipped == (f"{path.name}: larger than any checkpoint of this run",)


def test_a_full_disk_during_a_checkpoint_costs_that_checkpoint_only(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(11), MANIFEST)
    with full_disk(4096), pytest.raises(CheckpointError) as caught:
        folder.save(checkpoint(12), MANIFEST)
    assert "round-00000012.safetensors: cannot save the checkpoint: File too large" in str(caught.value)
    assert str(caught.value).endswith("the one of round 11 is kept, training goes on")
    assert names(folder) == ["round-00000011.safetensors"]
    folder.save(checkpoint(13), MANIFEST)  # space again
    assert folder.load_newest(MANIFEST).checkpoint is not None


def test_two_savers_of_one_peer_do_not_trip_over_each_other(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        saves = [pool.submit(folder.save, checkpoint(5), MANIFEST) for _ in range(12)]
    assert {save.result().name for save in saves} == {"round-00000005.safetensors"}
    assert names(folder) == ["round-00000005.safetensors"]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    folder = CheckpointFolder(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"cannot save the checkpoint: .*; there is no earlier one"):
        folder.save(checkpoint(1), MANIFEST)


def test_a_writer_killed_half_way_leaves_nothing_that_counts_and_its_litter_goes(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(1), MANIFEST)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import blockswarm.files as files\n"
        "files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_atomically(Path(sys.argv[1]), bytes(100_000))\n"
    )
    target = folder.folder / "round-00000002.safetensors"
    assert subprocess.run([sys.executable, "-c", script, str(target)], check=False, timeout=60).returncode == -9
    assert len(names(folder)) == 2  # the litter
    resumed = folder.load_newest(MANIFEST)
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.round == 1
    folder.save(checkpoint(3), MANIFEST)
    assert names(folder) == ["round-00000001.safetensors", "round-00000003.safetensors"]


def test_checkpoints_that_are_not_gone_on_from_are_kept_beside_the_new_ones(tmp_path):
    folder = CheckpointFolder(tmp_path)
    assert folder.set_aside() is None
    folder.save(checkpoint(5), MANIFEST)
    assert folder.set_aside() == tmp_path / "checkpoints-1"
    folder.save(checkpoint(0), MANIFEST)
    assert folder.set_aside() == tmp_path / "checkpoints-2"
    assert [path.name for path in (tmp_path / "checkpoints-1").iterdir()] == ["round-00000005.safetensors"]
