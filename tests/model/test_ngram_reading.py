"""Files from strangers: whatever is wrong with one, opening says so in a line, or all of it can be asked."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_counts import Level
from blockswarm.model.ngram_file import Header, Section, _encode, build_ngram_file, read_header
from blockswarm.model.ngram_reading import read_ngram_file

TEXT = np.concatenate(
    [
        np.frombuffer(b"peter piper picked a peck of pickled peppers; " * 8, np.uint8),
        np.random.default_rng(0).integers(0, 256, 600, dtype=np.uint8),
        np.full(400, 7, np.uint8),
    ]
)
SOUND = build_ngram_file(TEXT, order=4)
SECTIONS = {(section.level, section.name): section for section in read_header(memoryview(SOUND))[1]}


def changed(level: int, name: str, change: Callable[[np.ndarray], None]) -> bytes:
    """The sound file with one section changed in place."""
    section, data = SECTIONS[level, name], bytearray(SOUND)
    change(np.frombuffer(data, section.dtype, section.length, section.start))
    return bytes(data)


def set_at(index: int, value: int) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[index] = value

    return change


def test_the_sound_file_has_something_of_everything() -> None:
    for level in (1, 2, 3, 4):
        assert all(SECTIONS[level, name].length for name in ("labels", "followers", "leaf_labels", "large"))
    read_ngram_file(memoryview(SOUND))


def ask_all(data: bytes) -> None:
    """Open, and ask in every form; rows must be distributions whatever the counts say."""
    ngram = NgramModel(data)
    windows = np.stack([TEXT[:40], TEXT[100:140], TEXT[360:400], TEXT[-40:]])
    rows = ngram.log_probs(windows)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(np.exp(rows.astype(np.float64)).sum(-1), 1.0, atol=1e-4)
    assert np.isfinite(ngram.byte_log_probs(TEXT)).all()
    for window, row in zip(windows, rows, strict=True):
        np.testing.assert_array_equal(ngram.next_log_probs(window.tobytes()), row[-1])


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300)
def test_a_file_with_changed_bytes_is_refused_or_answers(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SOUND)
    for at, value in changes:
        data[at] = value
    try:
        ask_all(bytes(data))
    except ModelError as error:
        assert "\n" not in str(error)


@given(st.integers(0, 191), st.integers(0, 255))
@settings(max_examples=200)
def test_a_changed_header_is_refused_or_answers(at: int, value: int) -> None:
    data = bytearray(SOUND)
    data[at] = value
    try:
        ask_all(bytes(data))
    except ModelError as error:
        assert "\n" not in str(error)


@given(st.integers(0, len(SOUND) - 1))
def test_a_file_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(ModelError, match=r"cut off|not an n-gram file"):
        NgramModel(SOUND[:length])


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, SOUND[:8] + noise, SOUND[:32] + noise, SOUND + noise + b"\0"):
        with pytest.raises(ModelError):
            NgramModel(data)


@pytest.mark.parametrize("field", [24, 32, 40, 48, 56, 64, 72, 80, 88, 184])
@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**40, 2**30, 2**24])
def test_absurd_sizes_are_refused_before_any_memory_is_taken(field: int, value: int) -> None:
    data = bytearray(SOUND)
    struct.pack_into("<Q", data, field, value)
    tracemalloc.start()
    try:
        if field == 24 and value <= 2**30:  # a corpus may be as long as that
            read_ngram_file(memoryview(data))
        else:
            with pytest.raises(ModelError, match=r"out of range|its header describes"):
                read_ngram_file(memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "8s", b"BSNGRAM!", "does not begin with its mark"),
        (8, "I", 1, "format version 1, this software reads 2"),
        (12, "I", 0, "header holds a number that is out of range"),
        (12, "I", 9, "header holds a number that is out of range"),
        (16, "I", 0, "header holds a number that is out of range"),
        (20, "I", 1, "header holds a number that is out of range"),
        (24, "Q", 4, "header holds a number that is out of range"),
        (32, "Q", 2, "header holds a size that is out of range"),
        (40, "Q", 1, "header holds a size that is out of range"),
    ],
)
def test_what_is_wrong_in_a_header_is_said(offset: int, form: str, value: int | bytes, message: str) -> None:
    data = bytearray(SOUND)
    struct.pack_into(f"<{form}", data, offset, value)
    with pytest.raises(ModelError, match=message):
        read_ngram_file(memoryview(data))


def swap_first_two(values: np.ndarray) -> None:
    values[[0, 1]] = values[[1, 0]]


@pytest.mark.parametrize(
    ("level", "name", "change", "message"),
    [
        (0, "pairs", set_at(0, 1), "level 0, pairs do not begin at 0"),
        (2, "pairs_base", set_at(0, 3), "level 2, pairs do not begin at 0"),
        (2, "pairs", set_at(1, 0), "level 2, the offsets of pairs do not ascend"),
        (2, "pairs", set_at(1, 60000), "level 2, the offsets of pairs do not ascend"),
        (2, "pairs", set_at(-1, 0), "level 2, the offsets of pairs"),
        (1, "pairs_base", set_at(-1, 2**32 - 1), "level 1, the offsets of pairs do not ascend"),
        (1, "nodes", set_at(-1, 65535), "level 1, the offsets of nodes do not ascend"),
        (1, "leaves_base", set_at(1, 0), "level 1, the offsets of leaves do not ascend"),
        (0, "followers", swap_first_two, "level 0, bytes of pairs do not ascend"),
        (1, "labels", swap_first_two, "level 0, bytes of nodes do not ascend"),
        (1, "leaf_labels", swap_first_two, "level 0, bytes of leaves do not ascend"),
        (1, "labels", set_at(1, 0), "level 0, bytes of nodes do not ascend"),
        (4, "counts", set_at(-1, 0), "level 4, the list of large counts does not fit"),
        (4, "large_at", set_at(0, 1), "level 4, the list of large counts does not fit"),
        (4, "large_at", set_at(0, 2**32 - 1), "level 4, the list of large counts does not fit"),
        (4, "large", set_at(0, 255), "level 4, a large count is out of range"),
        (4, "large", set_at(0, 2**32 - 1), "level 4, a large count is out of range"),
    ],
)
def test_what_is_wrong_in_a_section_is_said(
    level: int, name: str, change: Callable[[np.ndarray], None], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_ngram_file(memoryview(changed(level, name, change)))


def crowded(full: int) -> bytes:
    """A file of order 2 with ``full`` contexts of two bytes that all bytes followed, each more often than a byte tells.

    Its other levels have nothing to do with these: what is checked is that it can be asked, not that it was counted.
    """
    none, every = np.empty(0, np.uint8), np.arange(256, dtype=np.uint8)

    def level(labels: np.ndarray, children: np.ndarray, order_left: int) -> Level:
        count = len(children)
        return Level(
            labels=labels,
            children=children,
            leaves=np.zeros(count, np.int64),
            kinds=np.full(count, 256),
            followers=np.tile(every, count),
            counts=np.full(256 * count, 300),
            leaf_labels=none,
            leaf_followers=none,
            leaf_tails=none.reshape(0, order_left),
        )

    share = full // 256
    levels = [
        level(none, np.array([256]), 2),
        level(every, np.full(256, share), 1),
        level(np.tile(every[:share], 256), np.zeros(full, np.int64), 0),
    ]
    return _encode(Header(2, 1, 1 << 29), levels)


def test_checking_takes_little_memory_whatever_the_file_holds() -> None:
    data = crowded(20_480)  # 5 million large counts, 52 MB
    tracemalloc.start()
    try:
        read_ngram_file(memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 24_000_000
    finally:
        tracemalloc.stop()


def test_filling_between_sections_is_zero() -> None:
    def filled(section: Section) -> bool:
        return section.stop % 8 != 0

    section = next(filter(filled, SECTIONS.values()))
    data = bytearray(SOUND)
    data[section.stop] = 1
    with pytest.raises(ModelError, match=f"level {section.level}, the filling after {section.name} is not zero"):
        read_ngram_file(memoryview(data))
