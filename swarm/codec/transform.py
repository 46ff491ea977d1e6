"""Experiment: the strongest frequencies of every 64 values, in the style of DeMo (Peng, Quesnelle, Kingma, 2024).

DeMo keeps a momentum, sends its strongest cosine components and takes what it sent out of it. Here the momentum is the
residual of an `ErrorFeedback` with a decay under 1, and this codec is the sending.

Unlike all others it does not decode to the same bits everywhere: cosines come from the machine's mathematical library
and the transform is a matrix product, whose order of summation differs. For experiments in one process.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from blockswarm.swarm.codec.base import Bytes, Float32, GroupedCodec
from blockswarm.swarm.codec.sparse import kept, pack_entries, unpack_entries

PERCENT = 6
"""Components sent: 4 of 64, 2 bits a value."""


@lru_cache(maxsize=64)
def cosine_basis(size: int) -> Float32:
    """The orthonormal DCT-II, float32 ``[size, size]``, one component a row."""
    component, place = np.arange(size)[:, None], np.arange(size)[None, :]
    basis = np.cos(np.pi / size * (place + 0.5) * component) * np.sqrt(2.0 / size)
    basis[0] *= np.sqrt(0.5)
    result: Float32 = basis.astype(np.float32)
    return result


class CosineCodec(GroupedCodec):
    """See the module's docstring."""

    name = "experimental-dct"
    group = 64
    exact = False

    def row_size(self, values: int) -> int:
        return 4 * kept(values, PERCENT)

    def pack(self, groups: Float32) -> Bytes:
        values = groups.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            components: Float32 = groups @ cosine_basis(values).T
        return pack_entries(components, kept(values, PERCENT))

    def unpack(self, rows: Bytes, values: int) -> Float32:
        components = unpack_entries(rows, values, kept(values, PERCENT))
        groups: Float32 = components @ cosine_basis(values)
        return groups
