"""A text's cross-entropy: every byte once, whatever the batching, with a stated context."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blockswarm.model.errors import ModelError
from blockswarm.model.scoring import STRETCH, score_of
from blockswarm.model.windows import window_start
from tests.model.reference import next_byte_log_probs

TEXT = np.frombuffer(b"the quick brown fox jumps over the lazy dog, again and again" * 5, dtype=np.uint8)


def telling(windows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A model whose answer names what it saw: ln p of any byte is −(window's first position) − row / 1000."""
    rows = -(starts[:, None] + np.arange(windows.shape[1]) / 1000.0)
    return np.repeat(rows[:, :, None], 256, axis=2).astype(np.float32)


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_every_byte_but_the_first_is_predicted_once_from_its_own_window(at_once: int) -> None:
    log_probs = next_byte_log_probs(telling, TEXT, 16, at_once=at_once)
    starts = [window_start(position, 16) for position in range(len(TEXT) - 1)]
    expected = [-(start + (position - start) / 1000.0) for position, start in enumerate(starts)]
    assert log_probs == pytest.approx(expected)


def test_the_byte_that_is_scored_is_the_one_that_follows() -> None:
    def knows_the_alphabet(windows: np.ndarray, starts: np.ndarray) -> np.ndarray:
        rows = np.full((*windows.shape, 256), -9.0, dtype=np.float32)
        np.put_along_axis(rows, (windows.astype(np.int64) + 1)[..., None], -0.5, axis=2)
        return rows

    alphabet = np.arange(97, 123, dtype=np.uint8)
    assert (next_byte_log_probs(knows_the_alphabet, alphabet, 8) == -0.5).all()


def test_a_text_too_short_to_predict_anything() -> None:
    with pytest.raises(ModelError, match="at least two"):
        score_of(next_byte_log_probs(telling, TEXT[:1], 16))


def test_bits_are_nats_over_ln_2() -> None:
    score = score_of(np.full(10, -math.log(2.0)))
    assert score.bits_per_byte == pytest.approx(1.0)
    assert score.bytes == 10
    assert score.ci95 is None  # a single stretch says nothing about the next


def test_the_interval_is_that_of_the_stretches_not_of_the_bytes() -> None:
    """Bytes within a stretch agree with each other here: 10,000 of them still are only ten draws."""
    levels = np.arange(10.0)
    score = score_of(-np.repeat(levels, STRETCH))
    assert score.nats_per_byte == pytest.approx(4.5)
    assert score.ci95 == pytest.approx(1.96 * levels.std(ddof=1) / math.sqrt(10))


@pytest.mark.parametrize("first", [1, 2, 16, 17, 100, len(TEXT) - 1])
def test_the_end_of_a_text_is_predicted_as_it_is_within_the_whole(first: int) -> None:
    whole = next_byte_log_probs(telling, TEXT, 16)
    assert next_byte_log_probs(telling, TEXT, 16, first=first) == pytest.approx(whole[first - 1 :])
