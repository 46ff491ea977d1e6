from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.corpus import open_corpus
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import digest_of_chunks
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from tests.model.counted import orders, texts, witten_bell

VERSE = b"she sells sea shells by the sea shore; the shells she sells are sea shells, i am sure. "
PHRASE = np.frombuffer(VERSE * 4, np.uint8)


def model(text: np.ndarray, order: int = 8, min_count: int = 1) -> NgramModel:
    return NgramModel(build_ngram_file(text, order=order, min_count=min_count))


def asked(text: np.ndarray, seed: int) -> np.ndarray:
    """A window to ask about: stretches of the text that was counted, with a few bytes changed."""
    random = np.random.default_rng(seed)
    start = random.integers(max(1, len(text) - 20))
    window = text[start : start + 30].copy()
    window[random.random(len(window)) < 0.15] = random.integers(0, 256)
    return window


@given(texts(), orders, st.sampled_from([1, 1, 2, 3, 7]), st.integers(0, 99))
@settings(max_examples=40)
def test_rows_are_the_formula(text: np.ndarray, order: int, min_count: int, seed: int) -> None:
    window = asked(text, seed)
    rows = model(text, order, min_count).log_probs(window[np.newaxis])[0]
    right = witten_bell(text.tobytes(), order, min_count)
    expected = np.log([right(window[: i + 1].tobytes()) for i in range(len(window))])
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-6)


@given(texts(), orders, st.integers(0, 99))
@settings(max_examples=40)
def test_one_row_many_rows_and_single_bytes_agree(text: np.ndarray, order: int, seed: int) -> None:
    ngram, window = model(text, order), asked(text, seed)
    rows = ngram.log_probs(window[np.newaxis])[0]
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(ngram.next_log_probs(window[: i + 1].tobytes()), row)
    chosen = rows[np.arange(len(window) - 1), window[1:]]
    np.testing.assert_allclose(ngram.byte_log_probs(window), chosen, rtol=1e-6, atol=1e-6)


@given(texts(), orders)
@settings(max_examples=40)
def test_every_row_is_a_distribution(text: np.ndarray, order: int) -> None:
    windows = np.random.default_rng(0).choice(text, (3, 20))
    rows = model(text, order).log_probs(windows).astype(np.float64)
    assert rows.shape == (3, 20, 256)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(np.exp(rows).sum(-1), 1.0, atol=1e-5)


def test_a_window_sees_nothing_before_its_first_byte_and_order_bytes_at_most() -> None:
    ngram = model(PHRASE, order=5)
    rows = ngram.log_probs(PHRASE[np.newaxis, :40])[0]
    later = ngram.log_probs(PHRASE[np.newaxis, 10:40])[0]
    np.testing.assert_array_equal(later[4:], rows[14:])
    for i in range(4):
        np.testing.assert_array_equal(later[i], ngram.next_log_probs(PHRASE[10 : 11 + i].tobytes()))
        assert not np.array_equal(later[i], rows[10 + i])


def test_rows_do_not_depend_on_how_many_are_asked_together() -> None:
    text = np.tile(PHRASE, 40)
    ngram = model(PHRASE)
    rows = ngram.log_probs(text[np.newaxis])[0]
    np.testing.assert_array_equal(ngram.log_probs(text[: 30 * 400].reshape(30, 400))[7, 8:], rows[2808:3200])
    chosen = ngram.byte_log_probs(np.tile(text, 2))
    np.testing.assert_allclose(chosen[: len(text) - 1], rows[np.arange(len(text) - 1), text[1:]], rtol=1e-6, atol=1e-6)


def test_without_context_the_row_is_that_of_single_bytes() -> None:
    text = np.frombuffer(b"aaab" * 10, np.uint8)
    row = np.exp(model(text, order=1).next_log_probs(b""))
    # 29 a and 10 b follow a first byte; T = 2 goes to the uniform law.
    assert row[ord("a")] == pytest.approx((29 + 2 / 256) / 41, rel=1e-6)
    assert row[ord("z")] == pytest.approx(2 / 256 / 41, rel=1e-6)


def test_a_text_seen_before_is_predicted_well_and_longer_contexts_help() -> None:
    corpus = open_corpus("docs", context=128)
    nats = {order: -model(corpus.train, order).byte_log_probs(corpus.heldout).mean() for order in (1, 2, 4, 8)}
    assert nats[1] > nats[2] > nats[4]
    assert 1.6 < nats[8] < 1.85  # 1.71 here; the documentation differs a little between Python versions


def test_pruning_halves_the_file_and_forgets_what_was_seen_once() -> None:
    corpus = open_corpus("docs", context=128)
    full, pruned = model(corpus.train), model(corpus.train, min_count=4)
    assert pruned.size < full.size / 2
    known, new = corpus.train[:30_000], corpus.heldout
    assert full.byte_log_probs(known).mean() > pruned.byte_log_probs(known).mean() + 0.3
    assert pruned.byte_log_probs(new).mean() > full.byte_log_probs(new).mean()  # seen once says too much


def test_texts_of_no_or_one_byte_have_nothing_to_predict() -> None:
    ngram = model(PHRASE)
    assert ngram.byte_log_probs(PHRASE[:0]).shape == ngram.byte_log_probs(PHRASE[:1]).shape == (0,)
    assert ngram.log_probs(np.empty((2, 0), np.uint8)).shape == (2, 0, 256)
    assert ngram.log_probs(np.empty((0, 5), np.uint8)).shape == (0, 5, 256)


def test_what_is_no_text_is_refused() -> None:
    ngram = model(PHRASE)
    wide: Any = np.arange(5)
    with pytest.raises(ModelError, match=r"windows are uint8\[5\], expected uint8\[n, t\]"):
        ngram.log_probs(PHRASE[:5])
    with pytest.raises(ModelError, match=r"text is int64\[5\], expected uint8\[m\]"):
        ngram.byte_log_probs(wide)


def test_a_file_on_disk_is_mapped_and_says_what_it_is(tmp_path: Path) -> None:
    data = build_ngram_file(PHRASE, order=6)
    path = tmp_path / "counts.ngram"
    path.write_bytes(data)
    ngram = NgramModel.open(path)
    assert (ngram.size, ngram.header.order, ngram.header.min_count) == (len(data), 6, 1)
    assert ngram.header.corpus_bytes == len(PHRASE)
    assert ngram.digest == NgramModel(data).digest
    np.testing.assert_array_equal(
        ngram.log_probs(PHRASE[np.newaxis, :50]), NgramModel(data).log_probs(PHRASE[np.newaxis, :50])
    )


def test_the_name_of_a_file_is_computed_when_it_is_asked_for_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts.ngram"
    path.write_bytes(build_ngram_file(PHRASE))
    hashed = []
    monkeypatch.setattr("blockswarm.model.ngram.bytes_chunk_digests", lambda data: hashed.append(len(data)) or [b"one"])
    ngram = NgramModel.open(path)
    ngram.next_log_probs(b"some")
    assert hashed == []
    assert ngram.digest == ngram.digest == digest_of_chunks([b"one"])
    assert hashed == [path.stat().st_size]


def test_a_file_that_is_missing_empty_or_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: cannot be read: No such file"):
        NgramModel.open(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    with pytest.raises(ModelError, match="empty: cannot be read"):
        NgramModel.open(tmp_path / "empty")
    (tmp_path / "text").write_bytes(PHRASE.tobytes())
    with pytest.raises(ModelError, match="text: this is not an n-gram file"):
        NgramModel.open(tmp_path / "text")
