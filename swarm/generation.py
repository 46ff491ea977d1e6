"""Byte by byte: asking for the next distribution, drawing from it, and cutting text at stop strings."""

from __future__ import annotations

import codecs

import trio

from blockswarm.model.sampling import sample_byte
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.options import Writing
from blockswarm.swarm.readouts import last_row, read
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session

EMPTY_PROMPT = b"\n"
"""What an empty prompt stands for: a model that predicts from bytes needs one to begin with."""


class Generation:
    """A text in the making.

    Its total time is bounded by ``asked.timeout`` seconds of *work*: a reader who takes his time between two pieces of
    a stream uses none of it up.

    Parameters
    ----------
    session : Session
        Whom to ask.
    prompt : bytes
        What the text begins with; not repeated in the output. Empty stands for ``EMPTY_PROMPT``.
    asked : Writing
        Everything else.
    """

    def __init__(self, session: Session, prompt: bytes, asked: Writing) -> None:
        self._session = session
        self._asked = asked
        self._text = bytearray(prompt or EMPTY_PROMPT)
        self._begin = len(self._text)
        self._stops = asked.stops
        self._left = asked.timeout
        self._held_from = self._begin  # bytes from here on may still turn out to be part of a stop string
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ended = asked.max_bytes == 0

    @property
    def report(self) -> CallReport:
        """How it is going."""
        return self._session.report

    async def next_piece(self) -> str | None:
        """The next text that is certain, None at the end.

        Raises
        ------
        DeadlineError
            When the time is used up; says how far the text got and which blocks were waited for.
        """
        began = trio.current_time()
        try:
            with trio.move_on_after(self._left) as scope:
                piece = await self._advance()
        finally:
            self._left -= trio.current_time() - began
            self._session.report.seconds += trio.current_time() - began
        if not scope.cancelled_caught:
            return piece
        waiting = ", ".join(f"block {block}" for block in sorted(self._session.unanswered))
        written = f"{len(self._text) - self._begin} of {self._asked.max_bytes} bytes written"
        raise DeadlineError(
            f"{self._asked.timeout:g} s were not enough: {written}" + (f", waiting for {waiting}" if waiting else "")
        )

    async def _advance(self) -> str | None:
        while not self._ended:
            await self._step()
            if piece := self._release():
                return piece
        return self._flush()

    async def _step(self) -> None:
        session, text = self._session, self._text
        session.byte = len(text)
        context = session.core.manifest.model.context
        asked, seed = self._asked, self._asked.drawn_seed
        rows = await read(session, last_row(text, context), readout=asked.readout, seed=seed)
        text.append(
            sample_byte(
                rows[0],
                temperature=asked.temperature,
                top_k=asked.top_k,
                top_p=asked.top_p,
                seed=seed,
                position=len(text),
            )
        )
        session.core.stats.generated_bytes += 1
        report = session.report
        report.bytes += 1
        if report.first_byte_seconds is None:
            report.first_byte_seconds = trio.current_time() - session.opened
        report.pin = session.pin.as_json()
        for mark in self._stops:
            if text.endswith(mark, self._held_from):
                del text[len(text) - len(mark) :]
                self._ended = True
                return
        self._ended = len(text) - self._begin >= self._asked.max_bytes

    def _release(self) -> str:
        """Decode the bytes that can no longer be the beginning of a stop string."""
        if self._ended:
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

    def _flush(self) -> str | None:
        rest = self._decoder.decode(bytes(self._text[self._held_from :]), final=True)
        self._held_from = len(self._text)
        return rest or None
