"""Which bytes a row of predictions may see: context windows that jump, so that a window's cache lives long.

Everyone who computes the row of position p uses the same window, so its value does not depend on how a text was cut
into requests. Windows start at multiples of half a context; a row is taken from the first window that holds it.
"""

from __future__ import annotations

from blockswarm.model.errors import ModelError


def _jump(context: int) -> int:
    if context < 1:
        raise ModelError(f"context {context}: must be at least 1")
    return max(1, context // 2)


def window_start(position: int, context: int) -> int:
    """The first byte of the window in which the row of ``position`` is computed.

    0 while ``position < context``; from there on it jumps by ``context // 2`` whenever the window is full.

    Parameters
    ----------
    position : int
        Absolute index of the row, that is of the last byte it sees.
    context : int
        Bytes in a full window.

    Returns
    -------
    int
        A start with ``start <= position < start + context``.
    """
    if position < 0:
        raise ModelError(f"position {position}: must not be negative")
    if position < context:
        return 0
    jump = _jump(context)
    return ((position - context) // jump + 1) * jump


def plan_windows(length: int, context: int) -> list[tuple[int, int, int]]:
    """Windows that together give every row of a text of ``length`` bytes exactly once.

    Returns
    -------
    list of (start, stop, take_from)
        Feed ``text[start:stop]`` (at most ``context`` bytes) and keep the rows from index ``take_from`` *of the window*
        on: they are the rows ``start + take_from … stop − 1`` of the text. In order, without gap or repetition.
    """
    plan = []
    position = 0
    while position < length:
        start = window_start(position, context)
        stop = min(start + context, length)
        plan.append((start, stop, position - start))
        position = stop
    return plan
