"""Time limits: seconds for one call, or one moment by which several calls together must be done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from blockswarm.naming import option
from blockswarm.swarm.errors import ArgumentError, DeadlineError


class Deadline:
    """A moment from which on nothing is begun. Give it as ``timeout`` to several calls, connecting among them.

    >>> limit = Deadline(20)
    >>> with SwarmClient.connect("bootstrap_peers.txt", timeout=limit) as swarm:
    ...     print(swarm.generate("The ", timeout=limit))

    Parameters
    ----------
    seconds : float
        From now on.
    now : callable
        Seconds of a clock that only goes forward.

    Raises
    ------
    ArgumentError
        When ``seconds`` is no positive, finite number.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = _positive(seconds)
        self._now = now
        self._end = now() + seconds

    def left(self) -> float:
        """Seconds left, above zero; raises `DeadlineError` when they are used up."""
        left = self._end - self._now()
        if left <= 0:
            raise DeadlineError(f"{self._seconds:g} s were not enough: connecting and earlier calls took all of them")
        return left


def check_timeout(timeout: float | Deadline) -> float:
    """Seconds that ``timeout`` allows from now on.

    Raises
    ------
    ArgumentError
        When it is no positive, finite number.
    DeadlineError
        When its moment has passed.
    """
    return timeout.left() if isinstance(timeout, Deadline) else _positive(timeout)


def _positive(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ArgumentError(f"{option('timeout')} {timeout!r}: must be a positive number of seconds")
    return timeout
