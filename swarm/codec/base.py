"""What every encoding of a vector is: a size known beforehand, bytes, and the one vector those bytes mean."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.errors import SwarmError

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CHUNK_VALUES = 32 * 1024
"""Values that go through the arithmetic at once: 128 KB, so that every pass but the first finds them in the cache."""

LARGEST_SCALE = 2.0**120
"""Scales must be smaller, so that no code times its scale leaves the range of float32."""


class CodecError(SwarmError):
    """Bytes that are no encoding of so many values, or a codec that does not exist; the text says which."""


class Codec(ABC):
    """One encoding of float32 vectors.

    Attributes
    ----------
    name : str
        What manifests call it.
    group : int
        Values that are encoded together. A vector that is cut at multiples of it encodes piece by piece to the same
        bytes.
    exact : bool
        Whether the same bytes mean the same bits on every machine. A run needs that: its members vote on digests.
    lossless : bool
        Whether what is decoded is what was encoded.
    growth : float
        The squared norm of what is decoded is at most this many times that of what was encoded.
    """

    name: str
    group: int
    exact: bool = True
    lossless: bool = False
    growth: float = 1.01

    @abstractmethod
    def size(self, count: int) -> int:
        """Bytes that ``count`` values take."""

    @abstractmethod
    def encode(self, values: Float32) -> bytes:
        """Bytes of a float32 vector."""

    @abstractmethod
    def decode(self, data: bytes | bytearray | memoryview, count: int) -> Float32:
        """The ``count`` values that ``data`` means; the length has been checked."""


class GroupedCodec(Codec):
    """A codec whose groups stand one after another, each by itself; the last one may hold fewer values.

    Subclasses work on matrices of equal groups, one a row.
    """

    @abstractmethod
    def row_size(self, values: int) -> int:
        """Bytes of one group of ``values``, at most `group`."""

    @abstractmethod
    def pack(self, groups: Float32) -> Bytes:
        """Groups, float32 ``[rows, values]``, as bytes, uint8 ``[rows, row_size(values)]``."""

    @abstractmethod
    def unpack(self, rows: Bytes, values: int) -> Float32:
        """The inverse of `pack`, float32 ``[rows, values]``; raises `CodecError` for bytes that mean no values."""

    def size(self, count: int) -> int:
        whole, rest = divmod(count, self.group)
        return whole * self.row_size(self.group) + (self.row_size(rest) if rest else 0)

    def encode(self, values: Float32) -> bytes:
        out = np.empty(self.size(len(values)), dtype=np.uint8)
        for begin, count, groups in _blocks(len(values), self.group):
            size = self.row_size(groups)
            start = begin // self.group * self.row_size(self.group)
            rows = out[start : start + count // groups * size].reshape(-1, size)
            rows[:] = self.pack(values[begin : begin + count].reshape(-1, groups))
        return out.tobytes()

    def decode(self, data: bytes | bytearray | memoryview, count: int) -> Float32:
        raw = np.frombuffer(data, dtype=np.uint8)
        out = np.empty(count, dtype=np.float32)
        for begin, values, groups in _blocks(count, self.group):
            size = self.row_size(groups)
            start = begin // self.group * self.row_size(self.group)
            rows = raw[start : start + values // groups * size].reshape(-1, size)
            out[begin : begin + values].reshape(-1, groups)[:] = self.unpack(rows, groups)
        return out


def _blocks(count: int, group: int) -> list[tuple[int, int, int]]:
    """Cut ``count`` values into pieces of equal groups: (first value, values, values a group)."""
    step = max(1, CHUNK_VALUES // group) * group
    whole = count - count % group
    blocks = [(begin, min(step, whole - begin), group) for begin in range(0, whole, step)]
    return [*blocks, (whole, count - whole, count - whole)] if count > whole else blocks


# -- scales: the upper half of a float32 (bfloat16), as small or as large as an update can be -------------------------


def to_scale_bytes(scales: Float32) -> tuple[Bytes, Float32]:
    """Scales rounded to nearest-even bfloat16, as bytes ``[rows, 2]``, and as the decoder will see them ``[rows]``.

    One under the smallest normal float32 becomes 0; one that is not finite stays so, and every receiver refuses it.
    """
    bits = scales.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    rounded[(rounded & 0x7FFF) < 0x0080] = 0
    rounded[~np.isfinite(scales)] = 0x7FC0
    seen = (rounded << 16).view(np.float32)
    return rounded.astype("<u2").view(np.uint8).reshape(-1, 2), seen


def from_scale_bytes(raw: Bytes) -> Float32:
    """Scales from their bytes ``[rows, 2]``; `CodecError` for one that no honest encoder writes."""
    bits = np.ascontiguousarray(raw).view("<u2").ravel().astype(np.uint32) << 16
    scales: Float32 = bits.view(np.float32)
    check_scales(scales)
    return scales


def check_scales(scales: npt.NDArray[np.floating]) -> None:
    """Refuse scales or values that are not finite, or so large that a product with them might not be."""
    with np.errstate(invalid="ignore"):
        fine = np.abs(scales) < LARGEST_SCALE
    if not fine.all():
        raise CodecError("not finite: a group's scale is not a number of a size that updates have")
