"""Connections that nobody can hold open by being slow: uvicorn's, with a bound on every silence.

uvicorn closes a connection that is idle after an answer. It waits for ever for a first request, for the rest of its
headers, for somebody to read an answer, and for a body that nobody wants any more. `wait_closed` of a server and the
number of open files depend on all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0
"""From a connection's beginning, or from the end of an answer, to the end of the next request's headers."""

STALLED_SECONDS = 30.0
"""Time in which somebody who gets an answer must take some of it."""

MAX_HEADER_BYTES = 16 * 1024


class BoundedConnection(H11Protocol):
    """One connection. What is late is cut off without a word: whoever is on the other side does not listen."""

    most: ClassVar[int] = 512
    """Open connections; further ones are closed at once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._request_due: asyncio.TimerHandle | None = None
        self._reading_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvicorn serves streams only
        if len(self.connections) > self.most:
            self.transport.abort()
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()
        self._settle()  # a request that was waiting in line has begun

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_due = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._reading_due)

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._request_due)
        _stop(self._reading_due)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # in the middle of an answer there is no place for another
            self.transport.abort()

    def _await_request(self) -> None:
        _stop(self._request_due)
        self._request_due = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _settle(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            _stop(self._request_due)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def connections_of(most: int) -> type[BoundedConnection]:
    """The kind of connection of a server that has at most so many."""
    return type("Connection", (BoundedConnection,), {"most": most})
