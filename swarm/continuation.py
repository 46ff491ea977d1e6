"""The text that follows a prompt, byte by byte: which window predicts the next byte, the draw, and stop strings. Pure.

Whoever has the log-probabilities, a swarm's client or a model on this machine, feeds them in row by row.
"""

from __future__ import annotations

import codecs

from blockswarm.model.sampling import sample_byte
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.chunks import Chunk, last_row
from blockswarm.swarm.options import Writing

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

    def window(self) -> Chunk:
        """What the next byte is predicted from."""
        return last_row(self._text, self._context)

    def add(self, row: Float32) -> None:
        """Draw the next byte from its log-probabilities, float32 ``[256]``."""
        text, asked = self._text, self._asked
        text.append(
            sample_byte(
                row,
                temperature=asked.temperature,
                top_k=asked.top_k,
                top_p=asked.top_p,
                seed=asked.drawn_seed,
                position=len(text),
            )
        )
        for mark in self._stops:
            if text.endswith(mark, self._held_from):
                del text[len(text) - len(mark) :]
                self.ended = True
                return
        self.ended = self.written >= asked.max_bytes

    def release(self) -> str:
        """The text that has become certain since the last time: no part of it can be the beginning of a stop string."""
        if self.ended:
            return ""
        text = self._text
        keep = 0
        for mark in self._stops:
            for length in range(min(len(mark) - 1, len(text) - self._held_from), keep, -1):
                if text.endswith(mark[:length], self._held_from):
                    keep = length
                    break
        ready = text[self._held_from : len(text) - keep]
        self._held_from = len(text) - keep
        return self._decoder.decode(bytes(ready))

    def flush(self) -> str | None:
        """What is left when the text has ended; None when that is nothing."""
        rest = self._decoder.decode(bytes(self._text[self._held_from :]), final=True)
        self._held_from = len(self._text)
        return rest or None
