"""Putting blocks together without torch: averaging their predictions, and the noise a sweep starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import Float32, philox

Readout = Literal["parallel", "sweep"]
"""How blocks become one model: all at once, averaged; or one after another as in the paper."""

VETO_FLOOR = -30.0
"""Log-probabilities are raised to this, so that no single block can veto a byte for ever."""


def normalise_log_probs(logits: NDArray[np.floating]) -> Float32:
    """``logits`` ``[..., 256]`` shifted so that each row's probabilities sum to one (float64 inside)."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide.astype(np.float32)


def without_veto(rows: Float32) -> Float32:
    """``rows`` with every log-probability at least ``VETO_FLOOR``: what a readout takes of each block's answer."""
    return np.maximum(rows, np.float32(VETO_FLOOR))


def mix_log_probs(rows: Sequence[Float32]) -> Float32:
    """The parallel readout's answer: the mean of the blocks' log-probabilities, renormalised.

    Parameters
    ----------
    rows : sequence of float32 ``[..., 256]``
        One array for each block that answered, natural log, all of one shape; some blocks may be missing.

    Returns
    -------
    ndarray, float32 ``[..., 256]``
        ``log softmax(mean_b log p_b)``.

    Raises
    ------
    ModelError
        If nothing was given, or shapes differ, or the last axis is not 256.
    """
    if not rows:
        raise ModelError("no block answered: there is nothing to mix")
    shapes = {row.shape for row in rows}
    if len(shapes) > 1 or rows[0].shape[-1:] != (VOCABULARY,):
        raise ModelError(f"cannot mix log-probabilities of shapes {sorted(shapes)}: need one shape [..., {VOCABULARY}]")
    total = np.zeros(rows[0].shape, dtype=np.float64)
    for row in rows:
        total += row
    return normalise_log_probs(total / len(rows))


def mix_counts(blocks: Float32, counts: Float32, weight: float) -> Float32:
    """The n-gram counts beside the blocks: ``log softmax((1 − weight) · blocks + weight · counts)``.

    Parameters
    ----------
    blocks, counts : float32 ``[..., 256]``
        Log-probabilities of the blocks together (``mix_log_probs``), and those of the counts.
    weight : float
        Share of the counts, 0 … 1.

    Raises
    ------
    ModelError
        If their shapes differ.
    """
    if blocks.shape != counts.shape:
        raise ModelError(f"cannot mix counts of shape {counts.shape} with blocks of shape {blocks.shape}")
    return normalise_log_probs((1.0 - weight) * blocks.astype(np.float64) + weight * counts)


def sweep_noise(seed: int, start: int, length: int, dim: int) -> Float32:
    """Standard normal noise of absolute positions ``start … start + length − 1``, the same wherever it is drawn.

    Each position has its own Philox counters, so a position's noise does not depend on the chunk it is asked in.
    Box–Muller turns pairs of 32-bit uniforms into pairs of normals (its logarithm and cosine may differ in the last bit
    between machines, which no readout can see).

    Parameters
    ----------
    seed : int
        Names the noise.
    start, length : int
        The positions wanted.
    dim : int
        Values for each position.

    Returns
    -------
    ndarray, float32 ``[length, dim]``
        N(0, 1). The sweep's first block scales it to its noise level; see ``BlockReader.sweep_step``.
    """
    counters = -(-dim // 8)  # a counter gives 4 raw words, a raw word a pair of normals
    raw = philox("sweep", seed, counter=start * counters).random_raw(length * counters * 4)
    radius_bits = (raw >> np.uint64(32)).astype(np.float64)
    angle_bits = (raw & np.uint64(0xFFFFFFFF)).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((radius_bits + 0.5) * 2.0**-32))
    angle = angle_bits * (2.0 * np.pi * 2.0**-32)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return np.ascontiguousarray(pairs.reshape(length, counters * 8)[:, :dim], dtype=np.float32)
