"""Whose request a holder computes next, which ones together, and how much of its time all of them get. Pure.

Clients take turns, so one that asks a lot waits for itself. Requests of the same group (the same states) are computed
together. Time is passed in, nothing waits here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Turn(Generic[T]):
    """A piece of work that waits for its turn."""

    client: str
    work: int
    """Its size: positions to be computed, and what a request costs in any case."""
    group: Hashable | None
    """Those of one group can be computed together; None: only by itself."""
    item: T


class Turns(Generic[T]):
    """What is waiting, client by client."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Turn[T]]] = OrderedDict()  # whose turn is next comes first

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, turn: Turn[T]) -> None:
        """Wait, behind what the same client has waiting already."""
        self._clients.setdefault(turn.client, deque()).append(turn)

    def discard(self, turn: Turn[T]) -> None:
        """Wait no more, if it still does."""
        waiting = self._clients.get(turn.client)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._clients[turn.client]

    def take(self, *, most: int, most_work: int) -> list[Turn[T]]:
        """What to compute next: one turn, and with it others of its group.

        Parameters
        ----------
        most, most_work : int
            Turns taken at once, and their work together (but one at least).
        """
        if not self._clients:
            return []
        taken = [self._pop(next(iter(self._clients)))]
        first = taken[0]
        work = first.work
        if first.group is None:
            return taken
        fits = True
        while fits:
            fits = False
            for client in list(self._clients):  # one of each client, then the second of each, …
                head = self._clients[client][0]
                if len(taken) < most and head.group == first.group and work + head.work <= most_work:
                    taken.append(self._pop(client))
                    work += head.work
                    fits = True
        return taken

    def _pop(self, client: str) -> Turn[T]:
        waiting = self._clients.pop(client)
        turn = waiting.popleft()
        if waiting:
            self._clients[client] = waiting  # at the end: the others come first
        return turn


LEAST_PACE = 0.1
"""Processor seconds a second that training counts as having, however little it gets: answers go on."""


def answering_rate(share: float, training: float) -> float:
    """Processor seconds a second that answers may take, so that they get ``share`` of what they and training take.

    Wall time would be another measure on a machine that several share: the share of a processor that training itself
    does not have.

    Parameters
    ----------
    share : float
        Above 0 and up to 1.
    training : float
        Processor seconds a second that training gets at present.
    """
    if share >= 1.0:
        return 1.0
    return min(1.0, max(LEAST_PACE, training) * share / (1.0 - share))


class TimeShare:
    """Bounds the share of a holder's time that answers take.

    Unused time is saved up, so that a client alone is not slowed down; what is used beyond that must be waited for.
    Over any ``t`` seconds answers take at most ``share · t + saved`` seconds and the one in progress at their end.

    Parameters
    ----------
    saved : float
        Most seconds saved up.
    """

    def __init__(self, saved: float, now: float) -> None:
        self._most = saved
        self._level = saved
        self._at = now

    def spend(self, seconds: float, share: float, now: float) -> None:
        """An answer took ``seconds``, and ended at ``now``."""
        self._refill(share, now)
        self._level -= seconds

    def wait(self, share: float, now: float) -> float:
        """Seconds until the next answer may begin, if the share stays."""
        self._refill(share, now)
        return max(0.0, -self._level / share)

    def _refill(self, share: float, now: float) -> None:
        self._level = min(self._most, self._level + share * max(0.0, now - self._at))
        self._at = now
