"""What rows of log-probabilities become as they come: how likely a text is, or a table of them all. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import EMPTY_PROMPT
from blockswarm.swarm.errors import ArgumentError

Spans = Sequence[tuple[int, int]]
"""Ranges ``[begin, end)`` of byte positions, in order and apart from each other."""


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    Attributes
    ----------
    log_probs : ndarray, float64 ``[bytes]``
        ln p of each scored byte, in order.
    missing : tuple of int
        Blocks the figures were computed without, at least in part.
    """

    log_probs: NDArray[np.float64] = field(repr=False, compare=False)
    missing: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Number of bytes scored."""
        return len(self.log_probs)

    @property
    def log_prob(self) -> float:
        """Sum of the natural-log probabilities of the scored bytes."""
        return float(self.log_probs.sum())

    @property
    def nats_per_byte(self) -> float:
        """Cross-entropy in nats per byte; ``nan`` for an empty text."""
        return -self.log_prob / self.bytes if self.bytes else math.nan

    @property
    def bits_per_byte(self) -> float:
        """The same in bits."""
        return self.nats_per_byte / math.log(2.0)


def read_spans(spans: Spans | None, length: int) -> list[tuple[int, int]]:
    """The ranges of a text of ``length`` bytes that a user asked for; the whole of it when he named none.

    Raises
    ------
    ArgumentError
        When they overlap, stand in another order, or lie outside the text.
    """
    if spans is None:
        return [(0, length)] if length else []
    chosen = [(int(begin), int(end)) for begin, end in spans]
    if any(not 0 <= begin < end <= length for begin, end in chosen):
        raise ArgumentError(f"spans: each must be a range [begin, end) within the {length} bytes of the text")
    if any(before[1] > after[0] for before, after in pairwise(chosen)):
        raise ArgumentError("spans: must be in order and must not overlap")
    return chosen


class ScoreSheet:
    """Collects the log-probabilities of the bytes that are scored from rows that arrive in any order.

    Parameters
    ----------
    text : bytes
        What is scored.
    given : bytes
        What it follows; empty stands for ``EMPTY_PROMPT``.
    spans : sequence of (int, int), optional
        Ranges of ``text`` to be scored; all of it by default.

    Raises
    ------
    ArgumentError
        When ``spans`` are no ranges of the text.
    """

    def __init__(self, text: bytes, given: bytes = b"", spans: Spans | None = None) -> None:
        given = given or EMPTY_PROMPT
        self.text = given + text
        """The whole text that is to be read."""
        self._bytes = np.frombuffer(self.text, dtype=np.uint8)
        before = len(given) - 1
        self.rows = [(before + begin, before + end) for begin, end in read_spans(spans, len(text))]
        """Ranges of rows that are needed: the row of a byte predicts the one after it."""
        self._begins = [begin for begin, _ in self.rows]
        self._offsets = [0, *accumulate(end - begin for begin, end in self.rows)]
        self._log_probs = np.zeros(self._offsets[-1], dtype=np.float64)

    def use(self, first: int, rows: Float32) -> None:
        """Take in ``rows``, float32 ``[n, 256]``, those from row ``first`` on; all of them of one span."""
        span = bisect_right(self._begins, first) - 1
        place = self._offsets[span] + first - self._begins[span]
        targets = self._bytes[first + 1 : first + 1 + len(rows)]
        self._log_probs[place : place + len(rows)] = rows[np.arange(len(rows)), targets]

    def score(self, missing: Sequence[int] = ()) -> Score:
        """The result, when all rows are in."""
        return Score(self._log_probs, tuple(missing))


class RowSheet:
    """Collects all rows of a text as they are, in any order.

    Parameters
    ----------
    text : bytes
        What is read.

    Raises
    ------
    ArgumentError
        When it is empty.
    """

    def __init__(self, text: bytes) -> None:
        if not text:
            raise ArgumentError("log-probabilities of an empty text: give at least one byte")
        self.text = text
        """The whole text that is to be read."""
        self.rows = [(0, len(text))]
        """Ranges of rows that are needed."""
        self.table = np.empty((len(text), 256), dtype=np.float32)
        """float32 ``[len(text), 256]``; complete when all rows are in."""

    def use(self, first: int, rows: Float32) -> None:
        """Take in ``rows``, float32 ``[n, 256]``, those from row ``first`` on."""
        self.table[first : first + len(rows)] = rows
