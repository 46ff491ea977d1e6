"""Kept results: read back as written, and never believed when they do not hash to their digest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blockswarm.lab.errors import LabError
from blockswarm.lab.store import Score, Store
from blockswarm.lab.training import Trained
from blockswarm.model.scoring import STRETCH

TRAINED = Trained(
    thetas=[np.arange(5, dtype=np.float32), np.ones(3, dtype=np.float32)],
    embeddings=[np.zeros(4, dtype=np.float32)] * 2,
    curve=[(10, 5.5), (20, 4.25)],
    watched=[(20, 4.5)],
    seconds=1.25,
    bytes_sent=77,
)


def test_a_training_comes_back_whole(tmp_path: Path) -> None:
    Store(tmp_path / "new").save_training("a", TRAINED)
    found = Store(tmp_path / "new").load_training("a")
    assert found is not None
    assert [theta.tolist() for theta in found.thetas] == [theta.tolist() for theta in TRAINED.thetas]
    assert (found.curve, found.watched, found.seconds, found.bytes_sent) == (
        TRAINED.curve,
        TRAINED.watched,
        TRAINED.seconds,
        TRAINED.bytes_sent,
    )
    assert Store(tmp_path / "new").load_training("b") is None


def test_scores_of_one_model_gather_readout_by_readout(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save_scores("m", {"parallel": Score.of(np.full(3 * STRETCH, -1.0))})
    store.save_scores("m", {"sweep": Score.of(np.full(3 * STRETCH, -2.0))})
    found = store.load_scores("m")
    assert found["parallel"].whole.nats_per_byte == 1.0
    assert found["sweep"].whole.nats_per_byte == 2.0
    assert found["sweep"].stretches.tolist() == [2.0, 2.0, 2.0]
    assert found["sweep"].whole.ci95 == pytest.approx(0.0)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_file_is_set_aside_and_named(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    store.save_training("a", TRAINED)
    path = tmp_path / "training-a.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    path.write_bytes({"truncated": bytes(data[:-3]), "flipped": bytes(data), "emptied": b""}[damage])
    assert store.load_training("a") is None
    assert "training-a.safetensors: damaged" in store.set_aside[0]
    assert (tmp_path / "training-a.damaged").exists(), "nothing is thrown away"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"file/training-a\.safetensors: cannot be written"):
        Store(tmp_path / "file").save_training("a", TRAINED)
