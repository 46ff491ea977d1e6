from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram_counts import count_ngrams
from blockswarm.model.ngram_file import GROUP, build_ngram_file, read_header
from blockswarm.model.ngram_reading import read_ngram_file
from tests.model.counted import orders, texts

TEXT = np.frombuffer(b"round the rugged rocks the ragged rascal ran. " * 8, np.uint8)


@given(texts(), orders, st.integers(1, 4))
@settings(max_examples=40)
def test_building_twice_gives_equal_bytes(text: np.ndarray, order: int, min_count: int) -> None:
    first = build_ngram_file(text, order=order, min_count=min_count)
    # Not even the memory order of the text matters.
    strided = np.repeat(text, 2)[::2]
    assert build_ngram_file(strided, order=order, min_count=min_count) == first


def test_the_file_of_a_text_is_the_same_on_every_machine() -> None:
    # A promise: who counts other bytes from the same corpus cannot serve a run's n-gram model.
    digests = [hashlib.sha256(build_ngram_file(TEXT, order=order)).hexdigest()[:16] for order in (1, 5, 8)]
    assert digests == ["99d55a43fb2e50d8", "321e0de1a0cfa5d4", "04832a4ab35ee382"]


@given(texts(), orders)
@settings(max_examples=40)
def test_the_file_holds_the_counts(text: np.ndarray, order: int) -> None:
    levels = count_ngrams(text, order)
    _, stored = read_ngram_file(memoryview(build_ngram_file(text, order=order)))
    for level, read in zip(levels, stored, strict=True):
        nodes = np.arange(len(level.kinds) + 1)
        np.testing.assert_array_equal(read.labels, level.labels)
        np.testing.assert_array_equal(np.diff(read.pairs.at(nodes)), level.kinds)
        np.testing.assert_array_equal(read.followers, level.followers)
        np.testing.assert_array_equal(read.counts.at(np.arange(len(level.counts))), level.counts)
        np.testing.assert_array_equal(read.leaf_labels, level.leaf_labels)
        np.testing.assert_array_equal(read.leaf_followers, level.leaf_followers)
        np.testing.assert_array_equal(read.leaf_tails, level.leaf_tails)
        if read is not stored[-1]:
            np.testing.assert_array_equal(np.diff(read.nodes.at(nodes)), level.children)
            np.testing.assert_array_equal(np.diff(read.leaves.at(nodes)), level.leaves)


def test_large_counts_and_many_nodes_survive_the_file() -> None:
    # 256 followers of 256 contexts: more offsets than one base serves; and one context seen 3,000 times.
    noise = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    text = np.concatenate([noise, np.zeros(3000, np.uint8)])
    levels = count_ngrams(text, 2)
    assert len(levels[2].kinds) > 100 * GROUP
    _, stored = read_ngram_file(memoryview(build_ngram_file(text, order=2)))
    for level, read in zip(levels, stored, strict=True):
        everything = np.arange(len(level.counts))
        np.testing.assert_array_equal(read.counts.at(everything), level.counts)
        np.testing.assert_array_equal(read.pairs.at(np.arange(len(level.kinds) + 1))[1:], np.cumsum(level.kinds))
    assert levels[2].counts.max() > 2000


def test_the_header_says_what_was_counted() -> None:
    data = build_ngram_file(TEXT, order=3, min_count=2)
    head, sections, sizes = read_header(memoryview(data))
    assert (head.order, head.min_count, head.corpus_bytes) == (3, 2, len(TEXT))
    assert data[:8] == b"BSNGRAM\n"
    assert struct.unpack_from("<IIII", data, 8) == (2, 3, 2, 0)
    assert [size.leaves for size in sizes] == [0, 0, 0, 0]  # seen once is less than min_count
    assert all(section.start % 8 == 0 for section in sections)


def test_a_size_limit_drops_as_few_contexts_as_it_can() -> None:
    lengths = {least: len(build_ngram_file(TEXT, order=6, min_count=least)) for least in range(1, 12)}
    for limit in (lengths[1], lengths[1] - 1, lengths[3], lengths[3] + 1, lengths[8]):
        data = build_ngram_file(TEXT, order=6, max_bytes=limit)
        chosen = read_header(memoryview(data))[0].min_count
        assert chosen == min(least for least, length in lengths.items() if length <= limit)
        assert len(data) == lengths[chosen]
    assert read_header(memoryview(build_ngram_file(TEXT, min_count=5, max_bytes=1 << 20)))[0].min_count == 5
    with pytest.raises(ModelError, match=r"max_bytes 200: the smallest file of this order has \d+ bytes"):
        build_ngram_file(TEXT, max_bytes=200)


@pytest.mark.parametrize("min_count", [0, -1, 2**32])
def test_a_min_count_out_of_range_is_refused(min_count: int) -> None:
    with pytest.raises(ModelError, match="min_count"):
        build_ngram_file(TEXT, min_count=min_count)
