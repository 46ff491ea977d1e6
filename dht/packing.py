"""msgpack for foreign bytes: a strict, bounded subset with one canonical form.

Allowed are ``None``, bool, int, float, str, bytes, lists, and maps with str keys. Extension types, other keys, deep
nesting and floods of tiny elements are refused before they cost memory or time: the bytes are walked over first, and
only what passes is made into values. msgpack itself takes room for all the items that a list announces as soon as it
begins, so that 55 kB of lists in lists would take 80 MB.
"""

from __future__ import annotations

from typing import Any

import msgpack

MAX_DEPTH = 12
"""Nesting a frame or record may have; ours use at most 4."""

MAX_ELEMENTS = 50_000
"""Values and keys in one message: walking over them takes about 10 ms, so a stranger cannot hold the event loop."""

# What the first byte of a value says: how many bytes follow it, or how wide the length is that follows.
_FOLLOW = dict.fromkeys((*range(128), 192, 194, 195, *range(224, 256)), 0)
_FOLLOW |= {0xA0 + size: size for size in range(0x20)}  # short text
_FOLLOW |= {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # numbers
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes and text
_ITEMS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}  # lists and maps
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_TEXTS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)))
_SHORT_ITEMS = range(0x80, 0xA0)


class PackingError(ValueError):
    """Bytes or values outside the allowed subset; the message is the reason."""


def pack(value: Any) -> bytes:
    """Canonical bytes of ``value``: map keys sorted, shortest integers, 64-bit floats.

    Raises
    ------
    PackingError
        If ``value`` holds a type outside the allowed subset.
    """
    try:
        return bytes(msgpack.packb(_sorted(value, 0), use_bin_type=True))
    except (ValueError, TypeError, OverflowError) as error:
        raise PackingError(str(error)) from None


def unpack(data: bytes | bytearray | memoryview, *, max_bytes: int) -> Any:
    """The value in ``data``, which must be one complete message of at most ``max_bytes`` bytes.

    Raises
    ------
    PackingError
        With the reason, for anything else. No other exception escapes, whatever the bytes are.
    """
    size = len(data)
    if size > max_bytes:
        raise PackingError(f"{size} bytes, at most {max_bytes} allowed")
    _walk(data)
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except Exception as error:
        # Text that is not UTF-8; anything else would be a message that the walk and the parser read differently.
        raise PackingError(f"not valid msgpack ({type(error).__name__})") from None


def unpack_map(data: bytes | bytearray | memoryview, *, max_bytes: int) -> dict[str, Any]:
    """Like `unpack`, for a message that must be a map."""
    value = unpack(data, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise PackingError("not a map")
    return value


def _sorted(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PackingError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise PackingError("map keys must be text")
        return {key: _sorted(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray, memoryview)):
        return value
    raise PackingError(f"a {type(value).__name__} cannot be sent")


def _walk(data: bytes | bytearray | memoryview) -> None:
    """Refuse bytes that are not one message within the subset and its bounds; nothing is allocated for its content."""
    size, place, values = len(data), 0, 1
    due, keyed = 1, False  # values still to come at this level, and whether every other one is a key
    around: list[tuple[int, bool]] = []
    while True:
        while not due:
            if not around:
                if place < size:
                    raise PackingError(f"not valid msgpack: {size - place} bytes after its end")
                return
            due, keyed = around.pop()
        if place >= size:
            raise PackingError("not valid msgpack: it is cut off")
        first = data[place]
        place += 1
        if keyed and not due % 2 and first not in _TEXTS:
            raise PackingError("map keys must be text")
        due -= 1
        follow = _FOLLOW.get(first)
        if follow is not None:
            place += follow
        elif (width := _LENGTHS.get(first)) is not None:
            place += width + int.from_bytes(data[place : place + width], "big")
        elif first in _EXTENSIONS:
            raise PackingError("extension types of msgpack are not allowed")
        elif first in _ITEMS or first in _SHORT_ITEMS:
            width = _ITEMS.get(first, 0)
            items = int.from_bytes(data[place : place + width], "big") if width else first & 0x0F
            place += width
            around.append((due, keyed))
            keyed = first in _MAPS
            due = 2 * items if keyed else items
            if due > size - place:
                raise PackingError("not valid msgpack: it announces more values than bytes follow")
            values += due
            if values > MAX_ELEMENTS:
                raise PackingError(f"more than {MAX_ELEMENTS} values")
            if due and len(around) > MAX_DEPTH:
                raise PackingError(f"nested deeper than {MAX_DEPTH}")
        else:
            raise PackingError(f"not valid msgpack: no value begins with {first:#x}")
        if place > size:
            raise PackingError("not valid msgpack: it is cut off")
