from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from blockswarm.model import corpus as corpus_module
from blockswarm.model.corpus import STRETCH, batches, heldout_windows, open_corpus, split
from blockswarm.model.errors import CorpusError

CONTEXT = 128


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes(np.random.default_rng(0).integers(32, 127, 200_000, dtype=np.uint8).tobytes())
    return path


def test_the_documentation_inside_python_is_the_default_text() -> None:
    docs = open_corpus("docs", context=CONTEXT)
    assert len(docs.train) + len(docs.heldout) > 200_000
    assert b"statement" in docs.train.tobytes()
    assert open_corpus("docs", context=CONTEXT).digest == docs.digest


def test_held_out_documentation_is_not_quoted_in_the_training_text() -> None:
    docs = open_corpus("docs", context=CONTEXT)
    train = docs.train.tobytes()
    windows = heldout_windows(docs, CONTEXT, 1000)
    quoted = sum(bytes(window) in train for window in windows)
    assert quoted <= 0.01 * len(windows)


def test_the_split_is_by_contiguous_pieces_and_loses_nothing(file: Path) -> None:
    book = open_corpus(str(file), context=CONTEXT)
    text = file.read_bytes()
    held = STRETCH // 10
    assert book.heldout[:held].tobytes() == text[STRETCH - held : STRETCH]
    assert book.train[: STRETCH - held].tobytes() == text[: STRETCH - held]
    assert len(book.train) + len(book.heldout) == len(text)
    assert 0.09 < len(book.heldout) / len(text) < 0.11


def test_no_training_window_overlaps_a_held_out_one() -> None:
    # Every 4 bytes name their own place in the text, so an overlap would show as a shared number.
    places = np.arange(50_000, dtype="<u4")
    numbered = split(places.tobytes(), "numbered", context=CONTEXT)
    train = set(np.frombuffer(numbered.train[: len(numbered.train) // 4 * 4].tobytes(), "<u4").tolist())
    drawn = itertools.islice(batches(numbered, 0, 16, CONTEXT), 20)
    pieces = [row.tobytes() for batch in drawn for row in batch]
    held = numbered.heldout.tobytes()
    assert not any(piece in held for piece in pieces)
    assert all(piece in numbered.train.tobytes() for piece in pieces)
    assert all(bytes(window) in held for window in heldout_windows(numbered, CONTEXT, 50))
    assert len(train) > 40_000


def test_batches_are_drawn_from_the_volunteers_own_seed(file: Path) -> None:
    book = open_corpus(str(file), context=CONTEXT)
    first, again, other = (next(batches(book, seed, 16, CONTEXT)) for seed in (1, 1, 2))
    assert first.shape == (16, CONTEXT + 1)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_held_out_windows_are_always_the_same_and_as_many_as_fit(file: Path) -> None:
    book = open_corpus(str(file), context=CONTEXT)
    assert heldout_windows(book, CONTEXT, 10).shape == (10, CONTEXT + 1)
    np.testing.assert_array_equal(heldout_windows(book, CONTEXT, 10), heldout_windows(book, CONTEXT, 10))
    assert len(heldout_windows(book, CONTEXT, 10**6)) == len(book.heldout) // (CONTEXT + 1)


def test_a_folder_is_its_text_files_in_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("second " * 100)
    (tmp_path / "a.txt").write_text("first " * 100)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0" * 100)
    (tmp_path / ".hidden").write_text("secret " * 100)
    opened = open_corpus(str(tmp_path), context=CONTEXT)
    assert split(b"first " * 100 + b"\n\n" + b"second " * 100, "x", context=CONTEXT).digest == opened.digest


def test_two_sequences_are_just_enough() -> None:
    need = 2 * (CONTEXT + 1)
    just = split(b"x" * need, "short.txt", context=CONTEXT)
    assert (len(just.train), len(just.heldout)) == (CONTEXT + 1, CONTEXT + 1)
    assert next(batches(just, 0, 4, CONTEXT)).shape == (4, CONTEXT + 1)
    with pytest.raises(CorpusError, match=rf"short.txt: holds {need - 1} bytes.*at least {need}"):
        split(b"x" * (need - 1), "short.txt", context=CONTEXT)


def test_missing_empty_unreadable_and_binary_texts_are_named(tmp_path: Path) -> None:
    empty, loop, binaries = tmp_path / "empty.txt", tmp_path / "loop.txt", tmp_path / "binaries"
    empty.touch()
    loop.symlink_to(loop)
    binaries.mkdir()
    (binaries / "x.bin").write_bytes(b"\0" * 5000)
    for path, reason in (
        (tmp_path / "none.txt", "no such file"),
        (empty, "is empty"),
        (loop, "cannot be read"),
        (binaries, "no text file"),
    ):
        with pytest.raises(CorpusError, match=reason) as caught:
            open_corpus(str(path), context=CONTEXT)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_text_too_long_for_memory_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAX_BYTES", 1000)
    with pytest.raises(CorpusError, match="more than the 1000"):
        open_corpus(str(file), context=CONTEXT)
    with pytest.raises(CorpusError, match="more than the 1000"):
        open_corpus(str(file.parent), context=CONTEXT)


def test_a_hub_dataset_without_the_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match=r"pip install 'blockswarm\[datasets\]'"):
        open_corpus("hf:wikitext:wikitext-2-raw-v1", context=CONTEXT)
    with pytest.raises(CorpusError, match="names no dataset"):
        open_corpus("hf:", context=CONTEXT)


def test_a_hub_dataset_is_its_texts_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> list[dict[str, object]]:
        asked.append((name, config, split, streaming))
        return [{"id": i, "text": f"row {i} of the set"} for i in range(100)]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    opened = open_corpus("hf:some/set:english", context=CONTEXT)
    assert asked == [("some/set", "english", "train", True)]
    expected = "\n".join(f"row {i} of the set" for i in range(100)).encode()
    assert opened.digest == split(expected, "x", context=CONTEXT).digest


def test_a_hub_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: object, **kwargs: object) -> None:
        raise ConnectionError("cannot reach the hub\nwith a long story")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(CorpusError, match=r"hf:some/set: the dataset cannot be loaded: cannot reach the hub$"):
        open_corpus("hf:some/set", context=CONTEXT)
