"""What a client tells about its work: events as they happen, and totals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


class IncompleteAnswerWarning(UserWarning):
    """An answer was made without one or more blocks, because nobody serves them."""


FinishReason = Literal["stop", "length"]
"""Why a text ended: before a stop string, or because it had as many bytes as were wanted."""

MAX_EVENTS = 1000
"""Events kept; a client may live for weeks."""


@dataclass(frozen=True)
class Event:
    """Something a user may want to know.

    Attributes
    ----------
    kind : str
        ``replaced`` (another holder took over), ``re-pinned`` (the states changed in the middle of a session),
        ``missing`` and ``returned`` (a block without and with a holder again), ``refused`` (an answer or record that
        was not believed), ``drafting`` (a block to draft with has come, or not), ``clock``.
    text : str
        One line for people.
    time : float
        Unix seconds.
    block, peer_id, byte : optional
        What it is about; ``byte`` is the absolute position in the text.
    count : int
        How often in a row it happened; repetitions are folded into one event.
    """

    kind: str
    text: str
    time: float
    block: int | None = None
    peer_id: str | None = None
    byte: int | None = None
    count: int = 1


@dataclass
class CallReport:
    """How one call went."""

    call: str
    readout: str
    seed: int | None = None
    """Seed that repeats the text, while the swarm still serves these states."""
    pin: dict[str, object] | None = None
    """States the answer came from (those at its end, if they had to change); see ``Pin.as_json``."""
    finish_reason: FinishReason | None = None
    """Why a text ended; None before that, and for log-probabilities."""
    bytes: int = 0
    """Bytes generated, or rows of log-probabilities."""
    round_trips: int = 0
    """Generation: times holders were waited for, one after the other; what is asked while an answer is on its way adds
    none until something is asked that needed that answer. A sweep waits once where z goes from holder to holder, else
    once for each block."""
    drafted: int = 0
    """Bytes that were guessed and asked about."""
    accepted: int = 0
    """How many of them stand in the text."""
    unsettled: int = 0
    """Bytes asked for once more by themselves, because rounding could have turned them."""
    seconds: float = 0.0
    first_byte_seconds: float | None = None
    missing: list[int] = field(default_factory=list)
    """Blocks the answer did without, at least in part."""
    replaced: int = 0
    """Holders that another one took over from."""
    repinned: int = 0
    """Times the pinned states were lost everywhere and others had to be taken."""

    @property
    def bytes_per_round_trip(self) -> float | None:
        """None where nothing was generated through a swarm."""
        return self.bytes / self.round_trips if self.round_trips else None


@dataclass
class ClientStats:
    """Totals of a client since it connected."""

    requests: int = 0
    """Serving requests sent, hedges included."""
    answers: int = 0
    """Good answers used."""
    hedges: int = 0
    """Requests sent beside a slow one."""
    failures: int = 0
    """Requests that ended in an error."""
    refused_answers: int = 0
    """Answers that broke a rule (shape, finiteness, normalisation)."""
    refused_records: int = 0
    replaced: int = 0
    repinned: int = 0
    generated_bytes: int = 0
    round_trips: int = 0
    """Of all generations, as are the next three; see ``CallReport``."""
    drafted: int = 0
    accepted: int = 0
    unsettled: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    last: CallReport | None = None
    """The latest finished call."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        if self.last is not None:
            values["last"]["bytes_per_round_trip"] = self.last.bytes_per_round_trip
        return values


class EventLog:
    """The latest events, repetitions folded."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(
        self, kind: str, text: str, *, block: int | None = None, peer_id: str | None = None, byte: int | None = None
    ) -> None:
        """Append an event, or count it up when it repeats the one before."""
        before = self._events[-1] if self._events else None
        count = 1
        if before is not None and (before.kind, before.text) == (kind, text):
            self._events.pop()
            count = before.count + 1
        self._events.append(Event(kind, text, time.time(), block, peer_id, byte, count))

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._events))

    def __len__(self) -> int:
        return len(self._events)
