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


def plan_windows(length: int, context: int, first: int = 0) -> list[tuple[int, int, int]]:
    """Windows that together give the rows ``first … length − 1`` of a text exactly once.

    Parameters
    ----------
    length : int
        Bytes of the text that are read.
    context : int
        Bytes in a full window.
    first : int
        The first row wanted. Its value is the same as when all rows before it are wanted too.

    Returns
    -------
    list of (start, stop, take_from)
        Feed ``text[start:stop]`` (at most ``context`` bytes) and keep the rows from index ``take_from`` *of the window*
        on: they are the rows ``start + take_from … stop − 1`` of the text. In order, without gap or repetition.
    """
    plan = []
    position = first
    while position < length:
        start = window_start(position, context)
        stop = min(start + context, length)
        plan.append((start, stop, position - start))
        position = stop
    return plan


def shared(one: bytes, other: bytes) -> int:
    """Bytes at the beginning of both: so much of one window need not be read again for the other."""
    if other.startswith(one):
        return len(one)
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def context_rule(context: int) -> str:
    """The rule in words, for reports: how much of a text a byte is predicted from."""
    jump = _jump(context)
    least = context - jump + 1
    seen = f"{context}" if least == context else f"{least} to {context}"
    return (
        f"windows of {context} bytes that jump by {jump}: each byte is predicted from the {seen} bytes before it "
        "(fewer at the beginning of the text)"
    )
