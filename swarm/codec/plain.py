"""Every value by itself: float32 as it is, or float16."""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.codec.base import Codec, Float32


class PlainCodec(Codec):
    """Little-endian IEEE numbers, one after another, rounded to nearest even.

    A value outside the range of float16 becomes an infinity. Decoding does not look at the values: who uses them
    checks that they are finite.
    """

    group = 1

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self._dtype = np.dtype(dtype)
        self.lossless = self._dtype.itemsize == 4

    def size(self, count: int) -> int:
        return count * self._dtype.itemsize

    def encode(self, values: Float32) -> bytes:
        with np.errstate(over="ignore"):
            return values.astype(self._dtype, copy=False).tobytes()

    def decode(self, data: bytes | bytearray | memoryview, count: int) -> Float32:
        # Float32 is not copied: what was received is looked at where it lies.
        return np.frombuffer(data, dtype=self._dtype, count=count).astype(np.float32, copy=False)
