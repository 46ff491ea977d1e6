"""msgpack for foreign bytes: a strict, bounded subset with one canonical form.

Allowed are ``None``, bool, int, float, str, bytes, lists, and maps with str keys. Extension types, other keys, deep
nesting and floods of tiny elements are refused before they cost memory or time.
"""

from __future__ import annotations

from typing import Any

import msgpack

MAX_DEPTH = 12
"""Nesting a frame or record may have; ours use at most 4."""

MAX_ELEMENTS = 50_000
"""Values in one message: walking them takes about 5 ms, so a stranger cannot hold the event loop."""

_SCALARS = frozenset((str, bytes, int, float, bool, type(None)))


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
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            use_list=True,
            ext_hook=_no_extensions,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=min(size, MAX_ELEMENTS),
            max_map_len=min(size, MAX_ELEMENTS),
            max_ext_len=0,
        )
    except PackingError:
        raise
    except Exception as error:
        # msgpack raises ValueError, TypeError, UnicodeDecodeError, RecursionError and types of its own.
        raise PackingError(f"not valid msgpack ({type(error).__name__})") from None
    _check(value)
    return value


def unpack_map(data: bytes | bytearray | memoryview, *, max_bytes: int) -> dict[str, Any]:
    """Like `unpack`, for a message that must be a map."""
    value = unpack(data, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise PackingError("not a map")
    return value


def _no_extensions(code: int, data: bytes) -> Any:
    raise PackingError("extension types are not allowed")


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


def _check(root: Any) -> None:
    # Breadth first, without recursion: the depth and the number of values are the stranger's choice.
    level, count = [root], 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                if not all(type(key) is str for key in value):
                    raise PackingError("map keys must be text")
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif kind not in _SCALARS:
                raise PackingError(f"a {kind.__name__} is not allowed")
        count += len(below)
        if count > MAX_ELEMENTS:
            raise PackingError(f"more than {MAX_ELEMENTS} values")
        if not below:
            return
        level = below
    raise PackingError(f"nested deeper than {MAX_DEPTH}")
