"""The text that follows a prompt: which windows predict the next bytes, the draw, and stop strings. Pure.

Whoever has the log-probabilities, a swarm's client or a model on this machine, feeds them in: row by row, or those of
several bytes at once that a draft proposes. The text is the same.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blockswarm.model.config import VOCABULARY
from blockswarm.model.sampling import is_settled, sample_byte
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.chunks import Chunk, chunks, last_row
from blockswarm.swarm.options import Writing
from blockswarm.swarm.report import FinishReason

TOLERANCE = 1e-4
"""Nats by which the same row may differ when its window was computed at another length, from a cache, or together with
others; float32 stays under 1e-5."""


@dataclass(frozen=True)
class Verified:
    """What came of a draft."""

    drawn: int
    """Bytes that were drawn."""
    right: int
    """How many of them are the draft's: all, or all but the last."""
    settled: bool = True
    """False: the text stands before a byte that rounding could turn. Ask for it alone, with its window computed by
    itself."""


class Certain(NamedTuple):
    """What has become certain since the last time."""

    text: str
    """Lags behind ``data`` while that ends within a character."""
    data: bytes
    rows: Float32 | None
    """Log-probabilities, float32 ``[len(data), 256]``, that each byte of ``data`` was drawn from, if they are kept."""


EMPTY_PROMPT = b"\n"
"""What an empty prompt stands for: a model that predicts from bytes needs one to begin with."""


class Continuation:
    """A text in the making.

    Parameters
    ----------
    prompt : bytes
        What the text begins with; not repeated in the output. Empty stands for ``EMPTY_PROMPT``.
    asked : Writing
        Everything else.
    context : int
        The model's context, bytes.
    """

    def __init__(self, prompt: bytes, asked: Writing, context: int) -> None:
        self._asked = asked
        self._context = context
        self._text = bytearray(prompt or EMPTY_PROMPT)
        self._begin = len(self._text)
        self._stops = asked.stops
        self._held_from = self._begin  # bytes from here on may still turn out to be part of a stop string
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rows: list[Float32] = []  # of the bytes held
        self._stopped = False
        self.ended = asked.max_bytes == 0
        """Whether no more bytes are wanted."""

    @property
    def position(self) -> int:
        """Absolute position of the next byte."""
        return len(self._text)

    @property
    def written(self) -> int:
        """Bytes after the prompt so far."""
        return len(self._text) - self._begin

    @property
    def text(self) -> bytes:
        """Prompt and output so far."""
        return bytes(self._text)

    @property
    def finish_reason(self) -> FinishReason | None:
        """``stop`` after a stop string, ``length`` after as many bytes as were wanted, None before the end."""
        if not self.ended:
            return None
        return "stop" if self._stopped else "length"

    @property
    def left(self) -> int:
        """Bytes that may still be added."""
        return 0 if self.ended else self._asked.max_bytes - self.written

    def window(self, draft: bytes = b"", first: int | None = None) -> Chunk:
        """What the next byte is predicted from and, one row each, what follows the bytes of ``draft``.

        With ``first``, the absolute index of a row, only the rows from there on. It fits one request: where the windows
        of a long draft would not, there are fewer rows.
        """
        if not draft:
            return last_row(self._text, self._context)
        return next(chunks(self.text + draft, self._context, first=len(self._text) - 1 if first is None else first))

    def unknown(self) -> Chunk:
        """One window for all the bytes that are left, as if those before them were known: they stand in it as zeros.

        As much of the text goes before them as the context holds, one byte at least.
        """
        known = bytes(self._text[-max(1, self._context + 1 - self.left) :])
        start = len(self._text) - len(known)
        return Chunk(len(self._text) - 1, (known + bytes(self.left - 1),), (start,), (len(known) - 1,))

    def choose(self, row: Float32, position: int) -> int:
        """The byte at ``position`` if its log-probabilities are ``row``, float32 ``[256]``."""
        asked = self._asked
        return sample_byte(
            row,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            seed=asked.drawn_seed,
            position=position,
        )

    def add(self, row: Float32) -> int:
        """Draw the next byte from its log-probabilities, float32 ``[256]``; returns it."""
        byte = self.choose(row, len(self._text))
        if self._asked.rows:
            self._rows.append(row.copy())  # not a view that keeps the rows of a whole request
        self.take(byte)
        return byte

    def take(self, byte: int) -> None:
        """Add a byte that was drawn elsewhere; without the row it was drawn from, so not where rows are kept."""
        text = self._text
        text.append(byte)
        for mark in self._stops:  # the longest first: of those that end here, the one that begins first
            if text.endswith(mark, self._held_from):
                del text[len(text) - len(mark) :]
                del self._rows[-len(mark) :]
                self.ended = self._stopped = True
                return
        self.ended = self.written >= self._asked.max_bytes

    def add_verified(self, rows: Float32, draft: bytes) -> Verified:
        """Draw as many bytes as the rows of ``window(draft)`` are good for.

        Row i is the swarm's prediction if the text goes on with ``draft[:i]``. So it counts as long as the bytes drawn
        are those of the draft; the first that is another one is the last that is added.

        Parameters
        ----------
        rows : float32 ``[n, 256]``
            ``1 <= n <= 1 + len(draft)``.
        draft : bytes
            What was proposed.

        Returns
        -------
        Verified
            How many bytes that were, and how many of the draft were right.
        """
        for number, row in enumerate(rows):
            if not self._settled(row):
                return Verified(number, number, settled=False)
            byte = self.add(row)
            right = number < len(draft) and byte == draft[number]
            if self.ended or not right:
                return Verified(number + 1, number + right)
        return Verified(len(rows), len(rows))

    def _settled(self, row: Float32) -> bool:
        asked = self._asked
        return is_settled(
            row,
            tolerance=TOLERANCE,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            seed=asked.drawn_seed,
            position=len(self._text),
        )

    def release(self) -> Certain:
        """What has become certain since the last time: no part of it can be the beginning of a stop string.

        At the end that is all there is left.
        """
        text = self._text
        if self.ended:
            return self._take(len(text), final=True)
        keep = 0
        for mark in self._stops:
            for length in range(min(len(mark) - 1, len(text) - self._held_from), keep, -1):
                if text.endswith(mark[:length], self._held_from):
                    keep = length
                    break
        return self._take(len(text) - keep, final=False)

    def _take(self, end: int, *, final: bool) -> Certain:
        data = bytes(self._text[self._held_from : end])
        self._held_from = end
        rows = None
        if self._asked.rows:
            taken, self._rows = self._rows[: len(data)], self._rows[len(data) :]
            rows = np.array(taken, dtype=np.float32).reshape(-1, VOCABULARY)
        return Certain(self._decoder.decode(data, final), data, rows)
