"""How an update's values travel: encodings every peer decodes to the same float32 bits."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Compression = Literal["none", "fp16"]
_WIRE: dict[str, np.dtype[np.generic]] = {"none": np.dtype("<f4"), "fp16": np.dtype("<f2")}


def encoded_size(count: int, compression: Compression) -> int:
    """Bytes that ``count`` values take on the wire."""
    return count * _WIRE[compression].itemsize


def encode(values: npt.NDArray[np.float32], compression: Compression) -> bytes:
    """Values as wire bytes, little-endian, rounded to nearest even.

    A value outside the range of float16 becomes an infinity, which every receiver refuses as not finite.
    """
    with np.errstate(over="ignore"):
        return values.astype(_WIRE[compression]).tobytes()


def decode(data: bytes | memoryview, compression: Compression) -> npt.NDArray[np.float32]:
    """Wire bytes back to float32 values; exact, so that everyone who decodes the same bytes holds the same values."""
    return np.frombuffer(data, dtype=_WIRE[compression]).astype(np.float32)
