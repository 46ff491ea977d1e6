"""What an option is called where its user is: an argument in Python, a flag on the command line.

The same checks answer both. Messages are made deep inside, in other threads too, and travel inside other messages; so
one setting of the process decides, which the command line makes and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_NOT_GIVEN = object()
_flags = False


def option(name: str, value: object = _NOT_GIVEN, *, flag: str | None = None) -> str:
    """How the user writes the option that Python calls ``name``.

    Parameters
    ----------
    name : str
        The argument or field.
    value : optional
        What to give it; ``True`` is the flag alone on the command line.
    flag : str, optional
        The flag where it is not ``name`` with dashes.

    Returns
    -------
    str
        ``max_bytes`` or ``--max-bytes``; with a value ``max_bytes=5`` or ``--max-bytes 5``.
    """
    if _flags:
        written = flag or "--" + name.replace("_", "-")
        return written if value is _NOT_GIVEN or value is True else f"{written} {value}"
    if value is _NOT_GIVEN:
        return name
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"


@contextmanager
def options_as_flags() -> Iterator[None]:
    """While this lasts, options are called by their flags: the user is on the command line."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before
