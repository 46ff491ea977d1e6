"""Byte by byte through the swarm: asking for the next distribution, within the time that was given."""

from __future__ import annotations

import trio

from blockswarm.swarm.continuation import Continuation
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.options import Writing
from blockswarm.swarm.readouts import read
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session


class Generation:
    """A text that the swarm writes.

    Its total time is bounded by ``asked.timeout`` seconds of *work*: a reader who takes his time between two pieces of
    a stream uses none of it up.

    Parameters
    ----------
    session : Session
        Whom to ask.
    prompt : bytes
        What the text begins with; not repeated in the output.
    asked : Writing
        Everything else.
    """

    def __init__(self, session: Session, prompt: bytes, asked: Writing) -> None:
        self._session = session
        self._asked = asked
        self._text = Continuation(prompt, asked, session.core.manifest.model.context)
        self._left = asked.timeout

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
        written = f"{self._text.written} of {self._asked.max_bytes} bytes written"
        raise DeadlineError(
            f"{self._asked.timeout:g} s were not enough: {written}" + (f", waiting for {waiting}" if waiting else "")
        )

    async def _advance(self) -> str | None:
        while not self._text.ended:
            await self._step()
            if piece := self._text.release():
                return piece
        return self._text.flush()

    async def _step(self) -> None:
        session, text = self._session, self._text
        session.byte = text.position
        rows = await read(session, text.window(), readout=self._asked.readout, seed=self._asked.drawn_seed)
        text.add(rows[0])
        session.core.stats.generated_bytes += 1
        report = session.report
        report.bytes += 1
        if report.first_byte_seconds is None:
            report.first_byte_seconds = trio.current_time() - session.opened
        report.pin = session.pin.as_json()
