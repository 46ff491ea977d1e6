"""Block-wise integers: a scale for every 64 values, and 8 or 4 bits for each of them.

A value is its code times the scale of its group, one float32 multiplication, so everyone decodes the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.codec.base import Bytes, Float32, GroupedCodec, from_scale_bytes, to_scale_bytes

GROUP = 64
"""Values under one scale. At 4 bits: 4.25 bits a value in all, 1/7.5 of float32; see ``benchmarks/codec.py``."""

# Both nibbles of a byte as a pair of float32, in one look-up.
_PAIRS = np.stack([np.arange(256) % 16 - 8.0, np.arange(256) // 16 - 8.0], axis=1).astype(np.float32)
_PAIRS_AS_WORDS = _PAIRS.view(np.uint64).ravel()


def largest(groups: Float32) -> Float32:
    """The value of largest magnitude in each row, with its sign; not finite where any value is not.

    float32 bits rotated left by one order values by magnitude and leave the sign in the lowest bit: one maximum.
    """
    bits = groups.view(np.uint32)
    top = ((bits << 1) | (bits >> 31)).max(axis=1)
    value: Float32 = ((top >> 1) | (top << 31)).view(np.float32)
    return value


def codes_of(groups: Float32, scales: Float32) -> Float32:
    """``groups`` in units of their ``scales`` ``[rows]``, to nearest even; 0 where a scale is 0 or unusable."""
    usable = np.isfinite(scales) & (scales != 0)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=usable)
    with np.errstate(invalid="ignore", over="ignore"):
        codes: Float32 = np.multiply(groups, inverse[:, None])
    if not usable.all():
        codes[~usable] = 0.0
    np.rint(codes, out=codes)
    return codes


class Int8Codec(GroupedCodec):
    """Codes -127 to 127 as int8; scale = largest magnitude / 127. 8.25 bits a value."""

    name = "int8"
    group = GROUP

    def row_size(self, values: int) -> int:
        return 2 + values

    def pack(self, groups: Float32) -> Bytes:
        rows = np.empty((len(groups), self.row_size(groups.shape[1])), dtype=np.uint8)
        rows[:, :2], scales = to_scale_bytes(np.abs(largest(groups) / np.float32(127), dtype=np.float32))
        rows[:, 2:] = codes_of(groups, scales).astype(np.int8).view(np.uint8)
        return rows

    def unpack(self, rows: Bytes, values: int) -> Float32:
        scales = from_scale_bytes(rows[:, :2])
        codes = rows[:, 2:].view(np.int8).astype(np.float32)
        codes *= scales[:, None]
        return codes


class Int4Codec(GroupedCodec):
    """Codes -8 to 7, two a byte; scale = value of largest magnitude / -8, so that it is code -8. 4.25 bits a value.

    The lower four bits of a byte are the first value's code plus 8, the upper four the second's. The signed scale uses
    all 16 codes: less error than a symmetric grid of 15.
    """

    name = "int4"
    group = GROUP
    growth = 1.6  # 8 steps once and 63 times half a step, each becoming a whole one: 127 / 79.75, and the scale's error

    def row_size(self, values: int) -> int:
        return 2 + (values + 1) // 2

    def pack(self, groups: Float32) -> Bytes:
        count, values = groups.shape
        rows = np.empty((count, self.row_size(values)), dtype=np.uint8)
        rows[:, :2], scales = to_scale_bytes(largest(groups) * np.float32(-0.125))
        codes = codes_of(groups, scales)
        np.minimum(codes, 7, out=codes)
        codes += 8
        nibbles = codes.astype(np.uint8)
        if values % 2:
            nibbles = np.concatenate([nibbles, np.full((count, 1), 8, dtype=np.uint8)], axis=1)
        pairs: npt.NDArray[np.uint16] = nibbles.view("<u2")
        rows[:, 2:] = pairs | (pairs >> 4)  # the lower byte of each pair: first code, and the second shifted by four
        return rows

    def unpack(self, rows: Bytes, values: int) -> Float32:
        scales = from_scale_bytes(rows[:, :2])
        codes: Float32 = _PAIRS_AS_WORDS.take(rows[:, 2:]).view(np.float32)
        codes *= scales[:, None]
        return codes[:, :values]
