"""z on its way through a traversal that draws all bytes at once: 8 bits a value instead of 32.

A hop costs a round trip more for every 14 KB (10 segments) that an idle TCP connection has to send beyond the first;
at a byte a value z of a whole window fits. Not for exact text, whose rows may differ by no more than float32 rounding.
"""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.codec.blocks import Int8Codec

_CODEC = Int8Codec()


def narrow_size(positions: int, dim: int) -> int:
    """Bytes of z of so many positions: 8.25 bits a value."""
    return _CODEC.size(positions * dim)


def narrowed(z: Float32) -> bytes:
    """float32 ``[positions, dim]`` as int8 with a scale for every 64 values."""
    return _CODEC.encode(z.astype(np.float32, copy=False).ravel())


def widened(data: bytes | bytearray | memoryview, positions: int, dim: int) -> bytearray:
    """What ``narrowed`` means, as float32 LE bytes; the same bits on every machine.

    Raises
    ------
    CodecError
        If ``data``, ``narrow_size(positions, dim)`` long, is no such encoding.
    """
    return bytearray(_CODEC.decode(data, positions * dim).astype("<f4", copy=False).tobytes())
