"""What the swarm has said after which bytes: the newest rows, found by the bytes before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.swarm.answers import Float32

Probabilities = NDArray[np.float32]

KEPT_ROWS = 4096
"""Rows remembered: 4 MiB."""

AVERAGED = 4
"""The newest rows of one context that count."""


class RowMemory:
    """Rows of probabilities by the last bytes before them.

    A thread may read while another adds: at worst it sees a row that is newer than it should be.

    Parameters
    ----------
    orders : sequence of int
        Lengths of the contexts under which a row is found again.
    rows : int
        Rows kept; a further one takes the place of the oldest.
    """

    def __init__(self, orders: Sequence[int], rows: int = KEPT_ROWS) -> None:
        self._orders = orders
        self._reach = max(orders)
        self._rows: Probabilities = np.empty((rows, VOCABULARY), np.float32)
        self._before: list[bytes] = []  # of each row kept, the bytes before it
        self._next = 0
        self._places: dict[bytes, list[int]] = {}

    def add(self, text: bytes, row: Float32) -> None:
        """Remember the log-probabilities, float32 ``[256]``, of what follows ``text``."""
        place, before = self._next, text[-self._reach :]
        self._next = (place + 1) % len(self._rows)
        if place < len(self._before):
            self._forget(place)
            self._before[place] = before
        else:
            self._before.append(before)
        np.exp(row, out=self._rows[place])
        for context in self._contexts(before):
            self._places.setdefault(context, []).append(place)

    def mean(self, context: bytes) -> Probabilities | None:
        """The mean of the newest rows after ``context``, whose length is one of the orders; None if there is none."""
        places = self._places.get(context)
        if not places:
            return None
        mean: Probabilities = self._rows[places[-AVERAGED:]].mean(axis=0)
        return mean

    def _contexts(self, before: bytes) -> list[bytes]:
        return [before[-order:] for order in self._orders if order <= len(before)]

    def _forget(self, place: int) -> None:
        for context in self._contexts(self._before[place]):
            places = self._places[context]
            places.remove(place)
            if not places:
                del self._places[context]
