"""Text through the swarm: drafting, asking what it makes of the draft, within the time that was given."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.continuation import Certain, Continuation, Verified
from blockswarm.swarm.drafting.drafting import Drafting
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.manifest import subject_name
from blockswarm.swarm.options import Writing
from blockswarm.swarm.readouts import read
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session


@dataclass(frozen=True)
class Piece:
    """A part of a text, as soon as it is certain."""

    text: str
    """Its characters; those of bytes that are no UTF-8 are U+FFFD. Lags behind ``data`` within a character."""
    data: bytes
    """Its bytes."""
    rows: Float32 | None
    """Natural-log probabilities each byte was drawn from, float32 ``[len(data), 256]``, if asked for."""
    last: bool
    """Whether the text ends here. Every text has a last piece, which may be empty."""
    report: CallReport
    """How the call is going; it changes while the text goes on."""


class Generation:
    """A text that the swarm writes.

    Its total time is bounded by ``asked.seconds`` seconds of *work*: a reader who takes his time between two pieces of
    a stream uses none of it up.

    Parameters
    ----------
    session : Session
        Whom to ask.
    prompt : bytes
        What the text begins with; not repeated in the output.
    asked : Writing
        Everything else.
    drafting : Drafting, optional
        Who guesses ahead. The text does not depend on it.
    """

    def __init__(self, session: Session, prompt: bytes, asked: Writing, drafting: Drafting | None = None) -> None:
        self._session = session
        self._asked = asked
        self._text = Continuation(prompt, asked, session.core.manifest.model.context)
        self._drafting = drafting
        self._alone = False  # the next byte must be asked for by itself
        self._left = asked.seconds

    @property
    def report(self) -> CallReport:
        """How it is going."""
        return self._session.report

    @property
    def text(self) -> bytes:
        """Prompt and output so far."""
        return self._text.text

    async def next_piece(self) -> Piece:
        """The next part that is certain, with at least one byte unless it is the last; an empty one after that.

        Raises
        ------
        DeadlineError
            When the time is used up; says how far the text got and which blocks were waited for.
        """
        return await self._piece(whole=False)

    async def whole(self) -> Piece:
        """All that is left as one piece; raises as `next_piece` does."""
        return await self._piece(whole=True)

    async def _piece(self, *, whole: bool) -> Piece:
        began = trio.current_time()
        try:
            with trio.move_on_after(self._left) as scope:
                certain = await self._advance(whole)
        finally:
            self._left -= trio.current_time() - began
            self._session.report.seconds += trio.current_time() - began
        if not scope.cancelled_caught:
            self.report.finish_reason = self._text.finish_reason
            return Piece(*certain, last=self._text.ended, report=self.report)
        waiting = ", ".join(map(subject_name, sorted(self._session.unanswered)))
        written = f"{self._text.written} of {self._asked.max_bytes} bytes written"
        raise DeadlineError(
            f"{self._asked.seconds:g} s were not enough: {written}" + (f", waiting for {waiting}" if waiting else "")
        )

    async def _advance(self, whole: bool) -> Certain:
        while not self._text.ended:
            await self._step()
            if not whole and not self._text.ended and (certain := self._text.release()).data:
                return certain
        return self._text.release()

    async def _step(self) -> None:
        session, text, drafting = self._session, self._text, self._drafting
        session.byte = text.position
        draft, told = b"", text.text
        if drafting is not None and not self._alone:
            draft = await drafting.propose(told, text.left - 1, text.choose)
        began = trio.current_time()
        alone, asked = self._alone, self._asked
        rows = await read(
            session, text.window(draft), readout=asked.row_readout, seed=asked.drawn_seed, go_on=not alone
        )
        seconds = trio.current_time() - began
        drafted = min(len(draft), len(rows))
        told += draft[: len(rows) - 1]
        if alone:
            text.add(rows[0])  # its window was computed by itself, as plain decoding does: taken as it is
            verified = Verified(1, 0)
        else:
            verified = text.add_verified(rows, draft)
        self._alone = not verified.settled
        if drafting is not None:
            drafting.note(told, rows, drafted=drafted, accepted=verified.right, seconds=seconds)
        self._count(drafted, verified)

    def _count(self, drafted: int, verified: Verified) -> None:
        session = self._session
        waits, session.waits = session.waits, 0
        for counts in (session.report, session.core.stats):
            counts.round_trips += waits
            counts.drafted += drafted
            counts.accepted += verified.right
            counts.unsettled += not verified.settled
        session.core.stats.generated_bytes += verified.drawn
        report = session.report
        report.bytes += verified.drawn
        if report.first_byte_seconds is None and report.bytes:
            report.first_byte_seconds = trio.current_time() - session.opened
        report.pin = session.pin.as_json()
