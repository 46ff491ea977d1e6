"""Three files make a split of their own; anything else is split as for volunteers."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockswarm.lab.errors import LabError
from blockswarm.lab.text import open_text
from blockswarm.model.corpus import open_corpus


def test_three_files_are_the_three_parts(folder: Path) -> None:
    text = open_text(str(folder), context=32)
    assert text.corpus.train.tobytes() == (folder / "train.txt").read_bytes()
    assert text.part("valid").tobytes() == (folder / "valid.txt").read_bytes()
    assert text.part("test").tobytes() == (folder / "test.txt").read_bytes()
    assert text.has_test


def test_any_other_text_is_split_as_for_volunteers(folder: Path) -> None:
    one = str(folder / "train.txt")
    text = open_text(one, context=32)
    assert text.part("valid").tobytes() == open_corpus(one, context=32).heldout.tobytes()
    assert not text.has_test


def test_a_folder_with_only_some_of_the_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a" * 100)
    with pytest.raises(LabError, match=r"train\.txt but not all of train\.txt, valid\.txt, test\.txt"):
        open_text(str(tmp_path), context=32)


def test_a_part_too_short_for_a_window_is_named(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt", "test.txt"):
        (tmp_path / name).write_text("a" * (5 if name == "valid.txt" else 100))
    with pytest.raises(LabError, match=r"valid\.txt: holds 5 bytes, needs at least 34"):
        open_text(str(tmp_path), context=32)
