"""Text through the swarm: drafting, asking what it makes of the draft, within the time that was given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import trio

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.continuation import Certain, Continuation, Verified
from blockswarm.swarm.drafting.drafting import Drafting
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.flights import MOST_FLIGHTS, Flights
from blockswarm.swarm.manifest import subject_name
from blockswarm.swarm.options import Writing
from blockswarm.swarm.readouts import read
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session

WRITING_SECONDS = 0.002
"""Time that a question gets to be written to the lines before the next bytes are guessed: guessing takes the loop."""


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
        self._flights = Flights(session)
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
        except BaseException:
            self._flights.give_up()
            raise
        finally:
            self._left -= trio.current_time() - began
            self._session.report.seconds += trio.current_time() - began
        if not scope.cancelled_caught:
            self.report.finish_reason = self._text.finish_reason
            return Piece(*certain, last=self._text.ended, report=self.report)
        self._flights.give_up()
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
        session, text, flights = self._session, self._text, self._flights
        session.byte = text.position
        if self._alone:
            # Its window was computed by itself, as plain decoding does: taken as it is.
            text.add((await self._read(text.window(), go_on=False))[0])
            self._alone = False
            self._count(0, Verified(1, 0))
            return
        if not flights:
            await self._send()
        while await self._send_ahead():
            pass
        flight, told, guess = flights.first, text.text, flights.guess
        await flight.landed()
        if flight.behind and not flight.usable:
            flights.forget()  # whatever it was: asked again, with nothing under way
            return
        rows = await flight.rows()
        verified = text.add_verified(rows, guess)
        self._alone = not verified.settled
        drafted = min(len(guess), len(rows))
        flights.land(verified.right if not text.ended else -1, len(rows))
        if self._drafting is not None:
            self._drafting.note(
                told + guess[: len(rows) - 1],
                rows,
                drafted=drafted,
                accepted=verified.right,
                seconds=None if flight.behind else flight.seconds,
            )
        self._count(drafted, verified)

    async def _send(self) -> None:
        """Ask what the text goes on with, and what it makes of a draft."""
        text, draft = self._text, b""
        if self._drafting is not None:
            ahead = self._asked.row_readout == "parallel"
            draft = await self._drafting.propose(text.text, text.left - 1, text.choose, unanswered=0 if ahead else None)
        chunk = text.window(draft)
        self._flights.send(chunk, draft, text.position, partial(self._read, chunk, go_on=True))

    async def _send_ahead(self) -> bool:
        """Guess on behind what is under way, and ask about it, if that pays; whether it did."""
        text, flights, drafting = self._text, self._flights, self._drafting
        if drafting is None or self._asked.row_readout != "parallel" or not 0 < len(flights) < MOST_FLIGHTS:
            return False
        unanswered = len(flights.guess)
        most = text.left - 1 - unanswered
        if not unanswered or not self._session.may_ask_ahead or not drafting.would(most, unanswered):
            return False
        with trio.move_on_after(WRITING_SECONDS):
            await flights.first.landed()
        if flights.first.back:
            return False
        draft = await drafting.propose(text.text + flights.guess, most, text.choose, unanswered=unanswered)
        if not draft:
            return False
        chunk = text.window(flights.guess + draft, first=flights.end)
        flights.send(chunk, draft, text.position, partial(self._read, chunk, go_on=True))
        return True

    async def _read(self, chunk: Chunk, *, go_on: bool) -> Float32:
        asked = self._asked
        return await read(self._session, chunk, readout=asked.row_readout, seed=asked.drawn_seed, go_on=go_on)

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
