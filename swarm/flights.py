"""Verifications under way: the next bytes are asked about before it is known whether those before them stand.

The rows that answer a guess count only if every byte guessed before it was right, so nothing here touches exactness: a
wrong byte makes everything asked behind it worthless, and what was right gives the text a round trip earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.errors import ClientError
from blockswarm.swarm.session import Session

MOST_FLIGHTS = 4
"""Verifications of one text under way at a time: a holder gives a client 16 places."""


class Flight:
    """One question, asked in the client's nursery: it outlives the task that waits for it.

    Attributes
    ----------
    chunk : Chunk
        The rows asked for.
    behind : int
        Bytes that were guessed, and not known to be right, before the first row: 0 if it was asked in the usual way.
    trip : int
        Which of the round trips that follow one another it belongs to.
    seconds : float
        From asking to the answer.
    """

    def __init__(self, session: Session, chunk: Chunk, ask: Callable[[], Awaitable[Float32]], behind: int, trip: int):
        self.chunk, self.behind, self.trip = chunk, behind, trip
        self.seconds = 0.0
        self._session, self._pin = session, session.pin
        self._rows: Float32 | None = None
        self._error: Exception | None = None
        self._done = trio.Event()
        self._scope = trio.CancelScope()
        session.core.nursery.start_soon(self._fly, ask)

    async def _fly(self, ask: Callable[[], Awaitable[Float32]]) -> None:
        began = trio.current_time()
        try:
            with self._scope:
                self._rows = await ask()
        except Exception as error:
            self._error = error
        finally:
            self.seconds = trio.current_time() - began
            self._done.set()

    @property
    def back(self) -> bool:
        """Whether the answer, or what went wrong, is here."""
        return self._done.is_set()

    @property
    def usable(self) -> bool:
        """Whether the answer of one asked ahead counts: it is good, and of the states that answer now."""
        return self._error is None and self._session.pin is self._pin

    async def rows(self) -> Float32:
        """The answer, float32 ``[rows, 256]``; raises what asking raised."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        if self._rows is None:
            raise ClientError("the question was given up")
        return self._rows

    async def landed(self) -> None:
        """Wait for it, however it went."""
        await self._done.wait()

    def give_up(self) -> None:
        """Have it cancelled: nobody wants the text any more."""
        self._scope.cancel()


class Flights:
    """The verifications of one text, and all that they guess.

    Parameters
    ----------
    session : Session
        Whom to ask.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._flying: deque[Flight] = deque()
        self._forgotten: list[Flight] = []
        self._trip = 0
        self._ahead = 0  # questions asked ahead since one landed
        self.guess = b""
        """Bytes after the text that are asked about."""

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def first(self) -> Flight:
        """The one whose rows follow the text."""
        return self._flying[0]

    @property
    def end(self) -> int:
        """Absolute index behind the last row asked for."""
        chunk = self._flying[-1].chunk
        return chunk.first_row + chunk.rows

    def send(self, chunk: Chunk, draft: bytes, length: int, ask: Callable[[], Awaitable[Float32]]) -> None:
        """Ask for the rows of ``chunk``.

        Parameters
        ----------
        chunk : Chunk
            Text, guess and ``draft``; its rows follow those asked for already.
        draft : bytes
            What is guessed in addition; what the rows do not reach is forgotten.
        length : int
            Bytes of the text.
        ask : callable
            Does it.
        """
        behind = len(self.guess)
        ahead = bool(self._flying)
        self._ahead += ahead
        self._flying.append(Flight(self._session, chunk, ask, behind if ahead else 0, self._trip + 1))
        self.guess = (self.guess + draft)[: self.end - length]

    def land(self, bytes_right: int, rows: int) -> None:
        """The first one's rows have been used; corrects ``session.waits``, which every question counts in.

        Of questions asked side by side only one was waited for: a round trip more if this one belongs to a later one.

        Parameters
        ----------
        bytes_right, rows : int
            Bytes drawn that were guessed, and rows there were: where all were right, the next flight goes on from them.
        """
        flight = self._flying.popleft()
        more, self._trip = flight.trip - self._trip, flight.trip
        self._session.waits += (more if flight.behind else 0) - self._ahead
        self._ahead = 0
        if bytes_right == rows:
            self.guess = self.guess[rows:]
        else:
            self.forget()

    def forget(self) -> None:
        """Expect nothing more of those under way. They end by themselves, and leave their streams for the next."""
        self._forgotten = [flight for flight in (*self._forgotten, *self._flying) if not flight.back]
        self._flying.clear()
        self.guess = b""

    def give_up(self) -> None:
        """End all of them, also those that nothing is expected of."""
        self.forget()
        for flight in self._forgotten:
            flight.give_up()
