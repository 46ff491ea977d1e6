"""Reading message bodies that strangers sent: every field typed, bounded and named in its error.

A *reader* takes a field's name and a foreign value and returns the checked value or raises
:class:`~blockswarm.swarm.errors.MessageError`. A :class:`Body` is a set of fields with their readers::

    CHUNK = Body(subject=integer(-1, 255), digest=octets(32), index=integer(0, 16_383))
    values = CHUNK.read(request.body)        # a dict with exactly these keys, or MessageError

Unknown keys are refused: two versions that disagree about a message find out at once instead of half-understanding
each other. Sizes are checked before anything is allocated, and no error echoes what the sender wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from blockswarm.swarm.errors import MessageError

Reader = Callable[[str, object], Any]

_BASE58 = re.compile(r"[1-9A-HJ-NP-Za-km-z]{2,128}")


class Optional:
    """Marks a field of a :class:`Body` that may be absent; ``default`` stands in for it."""

    def __init__(self, reader: Reader, default: Any = None) -> None:
        self.reader = reader
        self.default = default


class Body:
    """The shape of one message body: field names with their readers, :class:`Optional` where absence is allowed."""

    def __init__(self, **fields: Reader | Optional) -> None:
        self._fields = fields

    def read(self, body: object) -> dict[str, Any]:
        """Check ``body`` in full.

        Returns
        -------
        dict
            Every declared field, and nothing else.

        Raises
        ------
        MessageError
            For the first field at fault.
        """
        if not isinstance(body, Mapping):
            raise MessageError("body", f"must be a map, is {_kind(body)}")
        if len(body) > len(self._fields):
            raise MessageError("body", f"has {len(body)} keys, at most {len(self._fields)} are known")
        for key in body:
            if key not in self._fields:
                raise MessageError(_printable(key), "unknown key")
        return {name: self._field(body, name, reader) for name, reader in self._fields.items()}

    @staticmethod
    def _field(body: Mapping[str, Any], name: str, reader: Reader | Optional) -> Any:
        if isinstance(reader, Optional):
            return reader.reader(name, body[name]) if body.get(name) is not None else reader.default
        if name not in body:
            raise MessageError(name, "missing")
        return reader(name, body[name])

    def __call__(self, name: str, value: object) -> dict[str, Any]:
        """A body is a reader too, so that messages nest."""
        checked: dict[str, Any] = nested(self.read)(name, value)
        return checked


def nested(parse: Callable[[object], Any]) -> Reader:
    """What ``parse`` makes of a message within a message; its errors name the field by its path."""

    def read(name: str, value: object) -> Any:
        try:
            return parse(value)
        except MessageError as error:
            raise MessageError(f"{name}.{error.field}", error.reason) from None

    return read


def octets(length: int | None = None, *, most: int | None = None, least: int = 0) -> Reader:
    """Bytes of exactly ``length``, or of ``least`` to ``most``."""
    low, high = (length, length) if length is not None else (least, most)

    def read(name: str, value: object) -> bytes:
        if not isinstance(value, bytes):
            raise MessageError(name, f"must be bytes, is {_kind(value)}")
        if len(value) < low or (high is not None and len(value) > high):
            raise MessageError(name, f"must be {_range(low, high)} bytes, is {len(value)}")
        return value

    return read


def text(*, most: int, least: int = 0) -> Reader:
    """Printable text of ``least`` to ``most`` characters; it may reach terminals and logs."""

    def read(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise MessageError(name, f"must be text, is {_kind(value)}")
        if not least <= len(value) <= most:
            raise MessageError(name, f"must be {_range(least, most)} characters, is {len(value)}")
        if not value.isprintable():
            raise MessageError(name, "must be printable text")
        return value

    return read


def peer_id() -> Reader:
    """A base58 peer id, by its form only."""

    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or not _BASE58.fullmatch(value):
            raise MessageError(name, "must be a base58 peer id")
        return value

    return read


def one_of(*choices: str) -> Reader:
    """One of a few words."""

    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise MessageError(name, f"must be one of {', '.join(choices)}")
        return value

    return read


def integer(low: int, high: int) -> Reader:
    """A whole number from ``low`` to ``high``, both included."""

    def read(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise MessageError(name, f"must be a whole number, is {_kind(value)}")
        if not low <= value <= high:
            raise MessageError(name, f"must be {_range(low, high)}, is {value}")
        return value

    return read


def number(low: float, high: float) -> Reader:
    """A finite number from ``low`` to ``high`` (both finite, included); whole numbers are taken as floats."""

    def read(name: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise MessageError(name, f"must be a number, is {_kind(value)}")
        if not low <= value <= high:  # false for NaN too
            raise MessageError(name, f"must be a finite number {low:g} to {high:g}")
        return float(value)

    return read


def flag() -> Reader:
    """True or false."""

    def read(name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise MessageError(name, f"must be true or false, is {_kind(value)}")
        return value

    return read


def listed(item: Reader, *, most: int, least: int = 0, unique: bool = False) -> Reader:
    """A list of ``least`` to ``most`` items, read as a tuple; ``unique`` refuses an item that comes twice."""

    def read(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise MessageError(name, f"must be a list, is {_kind(value)}")
        if not least <= len(value) <= most:
            raise MessageError(name, f"must have {_range(least, most)} items, has {len(value)}")
        items = tuple(item(f"{name}[{index}]", entry) for index, entry in enumerate(value))
        if unique and len(set(items)) < len(items):
            raise MessageError(name, "holds an item twice")
        return items

    return read


def mapped(key: Reader, item: Reader, *, most: int, least: int = 0) -> Reader:
    """A map of ``least`` to ``most`` entries with checked keys and values, in the sender's order."""

    def read(name: str, value: object) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise MessageError(name, f"must be a map, is {_kind(value)}")
        if not least <= len(value) <= most:
            raise MessageError(name, f"must have {_range(least, most)} entries, has {len(value)}")
        return {key(f"{name} key", k): item(f"{name}[{index}]", v) for index, (k, v) in enumerate(value.items())}

    return read


def mapping(*, most: int) -> Reader:
    """A map with text keys of at most ``most`` entries, whose values somebody else will check."""

    def read(name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise MessageError(name, "must be a map with text keys")
        if len(value) > most:
            raise MessageError(name, f"must have at most {most} entries, has {len(value)}")
        return dict(value)

    return read


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _range(low: float, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"{low}" if low == high else f"{low} to {high}"


def _printable(key: object) -> str:
    return key[:40] if isinstance(key, str) and key.isprintable() else f"a key of type {_kind(key)}"
