"""The decision of `acceptance` on many groups at once: arrays of shape [groups, members], for a swarm's rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.robust import LEAST_GROUP, Robust

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Verdicts:
    """What was decided; arrays of shape [groups, members]."""

    weights: Floats
    """Weight of each accepted update, 0 where it is left out."""
    too_long: Bools
    """Whose update was left out for its length: a fault of its own, see `policy.standing`."""
    clips: Floats
    """To which share of itself an accepted update is shortened; 1 where it is not."""


def decide_all(
    samples: Floats,
    norms: Floats,
    sound: Bools,
    *,
    max_norm_ratio: float,
    max_weight_ratio: float,
    robust: Robust = "none",
    clip_ratio: float = math.inf,
) -> Verdicts:
    """`acceptance.decide` of each group.

    Parameters
    ----------
    samples, norms : ndarray, shape [groups, members]
        Samples behind each update, and its Euclidean length over all parts reported on.
    sound : ndarray of bool, shape [groups, members]
        Where a reducer reported on the sender and none found a problem. False where a group has no such member.
    max_norm_ratio, max_weight_ratio, robust, clip_ratio
        As in `acceptance.decide`.
    """
    valid = sound & (samples > 0)
    members = samples.shape[1]
    safe = np.where(valid, samples, 1.0)
    excuse = np.clip(safe[:, :, None] / safe[:, None, :], 1.0, max_norm_ratio)
    counts = valid & (norms > 0)
    suggested = np.where(counts[:, None, :] & ~np.eye(members, dtype=bool), norms[:, None, :] * excuse, np.nan)
    usual = _median(suggested)
    too_long = valid & (norms > max_norm_ratio * usual)
    accepted = valid & ~too_long
    cap = max_weight_ratio * _median_low(np.where(accepted, samples, np.inf), accepted.sum(axis=1))
    weights = np.where(accepted, np.minimum(samples, cap[:, None]), 0.0)
    shortened = np.full_like(norms, robust == "clip", dtype=bool)
    if robust in ("trimmed", "centered"):
        shortened = np.broadcast_to((accepted.sum(axis=1) < LEAST_GROUP)[:, None], norms.shape)
    longest = clip_ratio * usual
    clipped = accepted & shortened & (norms > longest)
    clips = np.divide(longest, norms, out=np.ones_like(norms), where=clipped)
    return Verdicts(weights, too_long, clips)


def _median(values: Floats) -> Floats:
    """Median over the last axis of what is not NaN; infinite where nothing is."""
    ordered = np.sort(values, axis=-1)  # NaN stands last
    count = np.maximum((~np.isnan(values)).sum(axis=-1), 1)[..., None]
    low, high = (np.take_along_axis(ordered, middle, axis=-1)[..., 0] for middle in ((count - 1) // 2, count // 2))
    return np.where(np.isnan(low), np.inf, (low + high) / 2)


def _median_low(values: Floats, count: npt.NDArray[np.int64]) -> Floats:
    """The lower median of the ``count`` smallest values of each row."""
    return np.take_along_axis(np.sort(values, axis=1), (np.maximum(count, 1)[:, None] - 1) // 2, axis=1)[:, 0]
