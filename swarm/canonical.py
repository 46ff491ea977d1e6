"""One encoding for equal values: what a manifest is hashed and sent as."""

from __future__ import annotations

from typing import Any

import msgpack


def plain(value: Any) -> Any:
    """Tuples as lists and -0.0 as 0.0, so that equal values have one encoding."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def canonical_bytes(mapping: dict[str, Any]) -> bytes:
    """msgpack of plain data, map keys sorted, every float as float64."""
    packed: bytes = msgpack.packb(_sorted(mapping))
    return packed


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
