"""Finding how much each expert should count: weight and sharpness that predict held-out bytes best.

The logits of a geometric mixture are linear in its coefficients, so its cross-entropy is convex in them, and Newton's
method with exact curvature finds the one minimum in a few passes over the rows. No randomness: the same rows give the
same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import Float32

MAX_SHARPNESS = 16.0
"""Sharpest readout that is considered."""

MAX_WEIGHT = 0.95
"""Largest share of the n-gram model while the sharpness of the blocks is fitted beside it: with none of the blocks left
it would have no meaning."""

_ROWS_AT_ONCE = 4096
_STEPS = 60
_HALVINGS = 40
_TOLERANCE = 1e-9
"""Nats per byte that a further step must promise."""

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class MixtureFit:
    """The best mixture for some held-out rows; arguments of ``mixing.mix_with``."""

    weight: float
    """Share of the n-gram model, 0 … 1."""
    sharpness: float
    """Exponent of the blocks' readout."""
    nats_per_byte: float
    """Cross-entropy of the mixture on those rows."""


def fit_mixture(
    blocks: Float32, ngram: Float32, targets: NDArray[np.uint8], *, with_sharpness: bool = False
) -> MixtureFit:
    """The weight of the n-gram model with the least cross-entropy, and the sharpness of the blocks if asked for.

    Parameters
    ----------
    blocks, ngram : float32 ``[..., 256]``
        Natural-log rows of the blocks' readout and of the n-gram model, on text that neither was trained on.
    targets : uint8 ``[...]``
        The bytes that followed.
    with_sharpness : bool
        Fit the sharpness too, which is never worse than the weight alone; otherwise it is 1.

    Raises
    ------
    ModelError
        If shapes do not fit, there are no rows, or a row holds a number that is not finite.
    """
    experts, wanted = _rows([blocks, ngram], targets)
    line = _Problem(experts, wanted, np.array([1.0, 0.0]), np.array([[-1.0], [1.0]]), np.array([1.0]))
    (weight,), nats = line.minimise(np.array([0.5]))
    plain = MixtureFit(float(weight), 1.0, nats)
    if not with_sharpness:
        return plain
    plane = _Problem(experts, wanted, np.zeros(2), np.eye(2), np.array([MAX_SHARPNESS, MAX_WEIGHT]))
    share, weight = 1.0 - plain.weight, min(plain.weight, MAX_WEIGHT)
    (share, weight), nats = plane.minimise(np.array([share, weight]))
    if nats > plain.nats_per_byte:  # the best weight alone lies beyond MAX_WEIGHT
        return plain
    return MixtureFit(float(weight), float(share / (1.0 - weight)), nats)


def fit_sharpness(blocks: Float32, targets: NDArray[np.uint8]) -> MixtureFit:
    """The sharpness of the blocks' readout with the least cross-entropy when there is no n-gram model (weight 0).

    Parameters and errors as of :func:`fit_mixture`.
    """
    experts, wanted = _rows([blocks], targets)
    line = _Problem(experts, wanted, np.zeros(1), np.eye(1), np.array([MAX_SHARPNESS]))
    (sharpness,), nats = line.minimise(np.array([1.0]))
    return MixtureFit(0.0, float(sharpness), nats)


def _rows(experts: list[Float32], targets: NDArray[np.uint8]) -> tuple[list[Float32], NDArray[np.uint8]]:
    """Checked and flattened to ``[m, 256]`` and ``[m]``."""
    for rows in experts:
        if rows.shape != (*targets.shape, VOCABULARY):
            raise ModelError(f"rows of shape {list(rows.shape)} do not fit {list(targets.shape)} targets")
    if not targets.size:
        raise ModelError("no held-out rows: there is nothing to fit a mixture to")
    if targets.dtype != np.uint8:
        raise ModelError(f"targets are {targets.dtype}, expected uint8")
    if not all(np.isfinite(rows).all() for rows in experts):
        raise ModelError("a row to fit a mixture to holds a number that is not finite")
    return [rows.reshape(-1, VOCABULARY) for rows in experts], targets.reshape(-1)


@dataclass(frozen=True)
class _Problem:
    """Cross-entropy as a function of parameters θ in a box 0 ≤ θ ≤ ``upper``; coefficients are ``at + along @ θ``."""

    experts: list[Float32]
    targets: NDArray[np.uint8]
    at: Float64
    along: Float64
    upper: Float64

    def minimise(self, theta: Float64) -> tuple[Float64, float]:
        """The best θ and its cross-entropy, by Newton's method kept inside the box, with step halving."""
        value, slope, curve = self._evaluate(theta)
        for _ in range(_STEPS):
            # At a bound that the slope pushes against, a parameter stays.
            free = ((theta > 0.0) | (slope < 0.0)) & ((theta < self.upper) | (slope > 0.0))
            if not free.any():
                break
            step = np.zeros_like(theta)
            ridge = np.eye(int(free.sum())) * 1e-12  # experts that agree leave a direction without curvature
            step[free] = np.linalg.solve(curve[np.ix_(free, free)] + ridge, -slope[free])
            if -slope @ step < _TOLERANCE:
                break
            for halving in range(_HALVINGS):
                tried = np.clip(theta + step * 0.5**halving, 0.0, self.upper)
                promised = float(slope @ (theta - tried))
                # Where the box cuts a step short it may lead uphill; half of it may not.
                if promised > 0.0 and (there := self._evaluate(tried))[0] <= value - 1e-4 * promised:
                    break
            else:
                break
            theta, (value, slope, curve) = tried, there
        return theta, value

    def _evaluate(self, theta: Float64) -> tuple[float, Float64, Float64]:
        """Cross-entropy in nats per byte, its gradient and its Hessian at ``theta``."""
        weights = self.at + self.along @ theta
        size = len(weights)
        value, slope, curve = 0.0, np.zeros(size), np.zeros((size, size))
        for start in range(0, len(self.targets), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = np.stack([expert[part] for expert in self.experts]).astype(np.float64)
            right = self.targets[part, np.newaxis].astype(np.int64)
            chosen = np.take_along_axis(rows, np.broadcast_to(right, (size, *right.shape)), axis=2)[:, :, 0]
            logits = np.tensordot(weights, rows, axes=1)
            logits -= logits.max(axis=1, keepdims=True)
            mass = np.exp(logits)
            total = mass.sum(axis=1)
            value += float((np.log(total) - np.take_along_axis(logits, right, axis=1)[:, 0]).sum())
            mass /= total[:, np.newaxis]
            mean = np.einsum("mw,emw->em", mass, rows)
            slope += (mean - chosen).sum(axis=1)
            centred = (rows - mean[:, :, np.newaxis]).reshape(size, -1)
            curve += (centred * mass.reshape(-1)) @ centred.T
        count = len(self.targets)
        return value / count, self.along.T @ slope / count, self.along.T @ curve @ self.along / count
