"""Which holder to ask first, how long to wait before asking a second one, and whom to leave alone for a while.

Pure state: time is passed in, nothing waits here. The rules, each bought with somebody's outage: a holder that fails is
left alone for seconds, not for ever; the last holder is always tried again; a holder never measured counts as average,
not as infinitely far away; whoever is slower than three times his own habit gets a rival.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

FailureKind = Literal["error", "busy", "untrusted"]

BAN_SECONDS: dict[FailureKind, tuple[float, float]] = {
    # (first, longest); each failure in a row doubles it. Untrusted answers are no accident, so they cost more.
    "error": (3.0, 60.0),
    "busy": (0.5, 5.0),
    "untrusted": (60.0, 600.0),
}

SLOW_FACTOR = 3.0
"""A holder slower than this many times its usual time gets a rival."""

HEDGE_FLOOR = 0.15
"""Seconds below which nobody is called slow: scheduling jitter, not trouble."""

FLOOR_PER_POSITION = 1e-3
"""Added to ``HEDGE_FLOOR`` for every position to be computed."""

FIRST_PATIENCE = 1.0
"""Seconds to wait for a holder never measured before a rival is asked too."""

FIRST_PATIENCE_PER_POSITION = 3e-3
"""Added to ``FIRST_PATIENCE`` for every position to be computed."""

HEDGES_SAVED = 10.0
"""Rivals that may be asked in a burst, when a holder stops with several requests in its queue."""

HEDGES_PER_ANSWER = 0.1
"""Rivals earned by a good answer. On an overloaded swarm everybody is slow, and asking twice would make it worse."""

POOR_PATIENCE = 10.0
"""Seconds to wait for a slow holder when no rival has been earned."""

PRIOR_SECONDS = 0.2
"""Expected time of a request while nobody was measured at all."""

SMOOTHING = 0.3
"""Weight of the newest measurement in a holder's usual time."""

STICKY = 0.7
"""Factor on the expected time of the holder already in use: it may have the text cached, and flapping helps nobody."""


@dataclass
class _Holder:
    usual: dict[int, float] = field(default_factory=dict)  # seconds by size class of the request
    failures: int = 0
    banned_until: float = 0.0
    in_flight: int = 0


class Router:
    """What one client has learned about the holders it has asked.

    Parameters
    ----------
    salt : bytes
        Breaks ties differently in each client, so that equal holders share the clients.
    """

    def __init__(self, salt: bytes = b"") -> None:
        self._salt = salt
        self._hedges = HEDGES_SAVED
        self._holders: dict[str, _Holder] = {}

    def order(
        self, holders: Iterable[str], *, work: int, now: float, prefer: str | None = None, own: int = 0
    ) -> list[str]:
        """Sort ``holders``, the one to ask first in front.

        Parameters
        ----------
        holders : iterable of str
            Peer ids that could answer.
        work : int
            Size of the request in positions.
        now : float
            Current time, seconds; the clock of ``failed``.
        prefer : str, optional
            The holder in use so far.
        own : int
            Requests under way there that the asker wants to be followed by this one; they do not speak against it.

        Returns
        -------
        list of str
            All of them: those under a ban stand last, the one whose ban ends first in front.
        """

        def rank(peer: str) -> tuple[float, float, bytes]:
            known = self._holders.get(peer) or _Holder()
            load, habit = (known.in_flight - own, STICKY) if peer == prefer else (known.in_flight, 1.0)
            expected = self.expected(peer, work) * (1 + load) * habit
            banned = known.banned_until if known.banned_until > now else 0.0
            return banned, expected, hashlib.sha256(self._salt + peer.encode()).digest()

        return sorted(holders, key=rank)

    def banned(self, peer: str, now: float) -> bool:
        """Whether ``peer`` is left alone as long as there is anyone else."""
        known = self._holders.get(peer)
        return known is not None and known.banned_until > now

    def expected(self, peer: str, work: int) -> float:
        """Seconds a request of ``work`` positions usually takes at ``peer``; the median of all where unknown."""
        size = _size_class(work)
        known = self._holders.get(peer)
        if known is not None and size in known.usual:
            return known.usual[size]
        others = [holder.usual[size] for holder in self._holders.values() if size in holder.usual]
        return statistics.median(others) if others else PRIOR_SECONDS

    def patience(self, peer: str, work: int) -> float:
        """Seconds to wait for ``peer`` before a rival is asked as well."""
        known = self._holders.get(peer)
        usual = known.usual.get(_size_class(work)) if known is not None else None
        if usual is None:
            seconds = FIRST_PATIENCE + work * FIRST_PATIENCE_PER_POSITION
        else:
            seconds = max(HEDGE_FLOOR + work * FLOOR_PER_POSITION, SLOW_FACTOR * usual)
        return seconds if self._hedges > 0.99 else max(seconds, POOR_PATIENCE)

    def hedged(self) -> None:
        """A rival was asked beside a slow holder."""
        self._hedges = max(0.0, self._hedges - 1)

    def started(self, peer: str) -> None:
        """A request to ``peer`` is on its way."""
        self._holders.setdefault(peer, _Holder()).in_flight += 1

    def ended(self, peer: str) -> None:
        """That request is over, however it went."""
        known = self._holders.setdefault(peer, _Holder())
        known.in_flight = max(0, known.in_flight - 1)

    def answered(self, peer: str, *, work: int, seconds: float) -> None:
        """``peer`` answered well after ``seconds``; its failures are forgiven."""
        known = self._holders.setdefault(peer, _Holder())
        size = _size_class(work)
        before = known.usual.get(size, seconds)
        known.usual[size] = before + SMOOTHING * (seconds - before)
        known.failures, known.banned_until = 0, 0.0
        self._hedges = min(HEDGES_SAVED, self._hedges + HEDGES_PER_ANSWER)

    def overtaken(self, peer: str, *, work: int, seconds: float) -> None:
        """A rival was faster: ``peer`` had not answered after ``seconds``, so it is known to take at least that."""
        known = self._holders.setdefault(peer, _Holder())
        size = _size_class(work)
        known.usual[size] = max(seconds, known.usual.get(size, 0.0))

    def failed(self, peer: str, *, now: float, kind: FailureKind, retry_after: float | None = None) -> None:
        """Leave ``peer`` alone for a while.

        Parameters
        ----------
        peer, now : str, float
            Who, and the current time in seconds.
        kind : {"error", "busy", "untrusted"}
            No answer or an error; too much to do; an answer that breaks the rules.
        retry_after : float, optional
            Seconds a busy holder asked for; it is capped, so that nobody sends clients away for ever.
        """
        known = self._holders.setdefault(peer, _Holder())
        first, longest = BAN_SECONDS[kind]
        seconds = min(longest, first * 2.0 ** min(known.failures, 16))
        if retry_after is not None and 0 <= retry_after < float("inf"):
            seconds = min(longest, retry_after)
        if kind != "busy":
            known.failures += 1
        known.banned_until = max(known.banned_until, now + seconds)


def _size_class(work: int) -> int:
    """Requests within a factor of four share a class: one window and a batch of 4096 positions do not compare."""
    return max(work, 1).bit_length() // 2
