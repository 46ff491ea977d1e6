"""Finding how much the n-gram model should count beside the blocks: the weight that predicts held-out bytes best.

The logits of a geometric mixture are linear in its weight, so its cross-entropy is convex in it, and Newton's method
with exact curvature finds the one minimum in a few passes over the rows. No randomness: the same rows give the same
number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import Float32

_ROWS_AT_ONCE = 4096
_STEPS = 60
_HALVINGS = 40
_TOLERANCE = 1e-9
"""Nats per byte that a further step must promise."""


@dataclass(frozen=True)
class MixtureFit:
    """The best mixture for some held-out rows: log p ∝ (1 − weight) · blocks + weight · n-gram."""

    weight: float
    """Share of the n-gram model, 0 … 1."""
    nats_per_byte: float
    """Cross-entropy of the mixture on those rows."""


def fit_mixture(blocks: Float32, ngram: Float32, targets: NDArray[np.uint8]) -> MixtureFit:
    """The weight of the n-gram model with the least cross-entropy.

    Parameters
    ----------
    blocks, ngram : float32 ``[..., 256]``
        Natural-log rows of the blocks' readout and of the n-gram model, on text that neither was trained on.
    targets : uint8 ``[...]``
        The bytes that followed.

    Raises
    ------
    ModelError
        If shapes do not fit, there are no rows, or a row holds a number that is not finite.
    """
    for rows in (blocks, ngram):
        if rows.shape != (*targets.shape, VOCABULARY):
            raise ModelError(f"rows of shape {list(rows.shape)} do not fit {list(targets.shape)} targets")
    if not targets.size:
        raise ModelError("no held-out rows: there is nothing to fit a mixture to")
    if targets.dtype != np.uint8:
        raise ModelError(f"targets are {targets.dtype}, expected uint8")
    if not (np.isfinite(blocks).all() and np.isfinite(ngram).all()):
        raise ModelError("a row to fit a mixture to holds a number that is not finite")
    return _minimise(blocks.reshape(-1, VOCABULARY), ngram.reshape(-1, VOCABULARY), targets.reshape(-1))


def _minimise(blocks: Float32, ngram: Float32, targets: NDArray[np.uint8]) -> MixtureFit:
    """Newton's method kept between 0 and 1, with step halving."""
    weight = 0.5
    value, slope, curve = _evaluate(blocks, ngram, targets, weight)
    for _ in range(_STEPS):
        # Experts that agree leave no curvature, and no slope either.
        step = min(max(weight - slope / (curve + 1e-12), 0.0), 1.0) - weight
        if -slope * step < _TOLERANCE:
            break
        for _ in range(_HALVINGS):
            there = _evaluate(blocks, ngram, targets, weight + step)
            if there[0] <= value + 1e-4 * slope * step:
                break
            step /= 2
        else:
            break
        weight, (value, slope, curve) = weight + step, there
    return MixtureFit(weight, value)


def _evaluate(blocks: Float32, ngram: Float32, targets: NDArray[np.uint8], weight: float) -> tuple[float, float, float]:
    """Cross-entropy in nats per byte, and its first and second derivative, at ``weight``."""
    value = slope = curve = 0.0
    for start in range(0, len(targets), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        right = targets[part, np.newaxis].astype(np.int64)
        logits = blocks[part].astype(np.float64)
        change = ngram[part] - logits  # of the logits with the weight
        logits += weight * change
        logits -= logits.max(axis=1, keepdims=True)
        mass = np.exp(logits)
        total = mass.sum(axis=1, keepdims=True)
        value += float((np.log(total) - np.take_along_axis(logits, right, axis=1)).sum())
        mass /= total
        mean = (mass * change).sum(axis=1, keepdims=True)
        slope += float((mean - np.take_along_axis(change, right, axis=1)).sum())
        curve += float((mass * (change - mean) ** 2).sum())
    count = len(targets)
    return value / count, slope / count, curve / count
