"""Experiments: one bit a value, and the few largest values only. Of use with error feedback alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.codec.base import (
    Bytes,
    CodecError,
    Float32,
    GroupedCodec,
    check_scales,
    from_scale_bytes,
    to_scale_bytes,
)


class SignCodec(GroupedCodec):
    """The sign of every value, and the mean magnitude of every 256: 1.06 bits a value."""

    name = "experimental-sign"
    group = 256

    def row_size(self, values: int) -> int:
        return 2 + (values + 7) // 8

    def pack(self, groups: Float32) -> Bytes:
        scales, _ = to_scale_bytes(np.abs(groups).mean(axis=1, dtype=np.float32))
        negative = np.packbits(groups < 0, axis=1, bitorder="little")
        return np.concatenate([scales, negative], axis=1)

    def unpack(self, rows: Bytes, values: int) -> Float32:
        scales = from_scale_bytes(rows[:, :2])
        negative = np.unpackbits(rows[:, 2:], axis=1, count=values, bitorder="little")
        signs = np.float32(1) - np.float32(2) * negative.astype(np.float32)
        return signs * scales[:, None]


def kept(values: int, percent: int) -> int:
    """How many of a group of ``values`` are sent: the rounded share, at least one."""
    return max(1, (values * percent + 50) // 100)


def pack_entries(values: Float32, count: int) -> Bytes:
    """The ``count`` largest of each row: their positions ascending (uint16), then they themselves (float16)."""
    size = values.shape[1]
    # NaN counts as the largest of all, so that it is sent, and refused.
    order = np.argpartition(np.abs(values), size - count, axis=1)[:, size - count :]
    positions = np.sort(order, axis=1)
    with np.errstate(over="ignore"):
        sent = np.take_along_axis(values, positions, axis=1).astype("<f2")
    return np.concatenate([positions.astype("<u2").view(np.uint8), sent.view(np.uint8)], axis=1)


def unpack_entries(rows: Bytes, size: int, count: int) -> Float32:
    """The inverse: rows of ``size`` values that are 0 where nothing was sent.

    Raises
    ------
    CodecError
        When positions do not ascend, point outside the row, or a value is not finite.
    """
    positions = np.ascontiguousarray(rows[:, : 2 * count]).view("<u2").astype(np.intp)
    sent = np.ascontiguousarray(rows[:, 2 * count :]).view("<f2").astype(np.float32)
    if (positions >= size).any() or (np.diff(positions, axis=1) <= 0).any():
        raise CodecError(f"positions of the values sent must ascend and be under {size}")
    check_scales(sent)
    out: npt.NDArray[np.float32] = np.zeros((len(rows), size), dtype=np.float32)
    np.put_along_axis(out, positions, sent, axis=1)
    return out


class TopCodec(GroupedCodec):
    """The largest ``percent`` of every 4096 values, as positions and float16 values: 0.32 bits a value per percent."""

    group = 4096

    def __init__(self, percent: int) -> None:
        self.name = f"experimental-top{percent}"
        self._percent = percent

    def row_size(self, values: int) -> int:
        return 4 * kept(values, self._percent)

    def pack(self, groups: Float32) -> Bytes:
        return pack_entries(groups, kept(groups.shape[1], self._percent))

    def unpack(self, rows: Bytes, values: int) -> Float32:
        return unpack_entries(rows, values, kept(values, self._percent))
