"""Windows of a serving request as arrays: cut into small batches of equal length, answers joined again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockswarm.dht.errors import RpcRefused
from blockswarm.model.mixing import sweep_noise
from blockswarm.peer.serving_queue import PIECE_WORK
from blockswarm.swarm.messages import SweepRequest

Float32 = NDArray[np.float32]


def pieces(windows: Sequence[bytes]) -> list[list[int]]:
    """Indices of windows of equal length, at most :data:`PIECE_WORK` positions together (one window at least)."""
    by_length: dict[int, list[int]] = {}
    for index, window in enumerate(windows):
        by_length.setdefault(len(window), []).append(index)
    found: list[list[int]] = []
    for length, indices in by_length.items():
        step = max(1, PIECE_WORK // length)
        found += [indices[start : start + step] for start in range(0, len(indices), step)]
    return found


def stack(windows: Sequence[bytes], part: Sequence[int]) -> NDArray[np.uint8]:
    """Windows of one length as uint8 ``[n, length]``."""
    return np.stack([np.frombuffer(windows[index], dtype=np.uint8) for index in part])


def noise(wanted: SweepRequest, index: int, dim: int) -> Float32:
    """What the sweep's first block starts one window from, float32 ``[len, dim]``."""
    return sweep_noise(wanted.seed, wanted.starts[index], len(wanted.windows[index]), dim)


def split_z(blob: bytearray, block: int, lengths: Sequence[int], dim: int) -> list[Float32]:
    """z of each window, float32 ``[len, dim]``; empty for block 0, which draws its own."""
    if block == 0:
        return []
    positions = sum(lengths)
    if len(blob) != 4 * positions * dim:
        raise RpcRefused("bad-request", f"z: {len(blob)} bytes, {4 * positions * dim} are due")
    z = np.frombuffer(blob, dtype="<f4").astype(np.float32, copy=False).reshape(positions, dim)
    if not np.isfinite(z).all():
        raise RpcRefused("bad-request", "z: not all values are finite")
    return np.split(z, np.cumsum(lengths)[:-1])


def joined(answers: Sequence[Float32]) -> memoryview:
    """Little-endian bytes of all rows in order."""
    return np.concatenate(answers).astype("<f4", copy=False).data.cast("B")
