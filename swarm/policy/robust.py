"""The mean of a group's updates, hardened against some of them being wrong (manifest: ``averaging.robust``).

``none``      the weighted mean.
``clip``      the same; an update longer than ``clip_ratio`` times what its peers' suggest is shortened to that.
``trimmed``   in groups of four and more: in every coordinate the lowest and the highest quarter are left out, and the
              rest counts alike (Yin et al. 2018). Weights do not matter: no claim of samples buys influence.
``centered``  in groups of four and more: centered clipping (Karimireddy et al. 2021). Differences from the centre are
              shortened to their median length, three times; weights count. Reducers do so each for its own part.

With fewer than four updates there is no majority to lean on, and the last two are ``clip``.

Everything is float32 in list order, and lengths are summed in a fixed order in float64, so that the same part gives
the same bits wherever it is reduced. Today one member reduces it and all others take its bytes; a second one could
check the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Robust = Literal["none", "clip", "trimmed", "centered"]

LEAST_GROUP = 4
"""Updates from which on outliers can be told from the others."""

CENTERINGS = 3
"""Steps of centered clipping: more than enough from a centre of zero when updates are of similar length."""

NAMED_BELOW = 0.5
"""An update that centered clipping shortens to less than this share of itself is named in the round's report."""

_SQUARED_AT_ONCE = 64 * 1024
_SORTED_AT_ONCE = 16 * 1024


def method_for(robust: Robust, count: int) -> Robust:
    """What is done with ``count`` accepted updates."""
    return "clip" if robust in ("trimmed", "centered") and count < LEAST_GROUP else robust


def trimmed_each_side(count: int) -> int:
    """Values left out at either end of ``count``: a quarter, rounded down."""
    return count // 4


def growth_of(robust: Robust) -> float:
    """How many times longer than its longest term (in squared norm) a mean can be, at most.

    A trimmed mean keeps at least half of the values of a coordinate, so its square is at most their mean square, twice
    that of all.
    """
    return 2.0 if robust == "trimmed" else 1.0


_SUMMED_AT_ONCE = 1 << 16
"""Values summed at a time: what is in work stays in the cache."""


def squared_length(values: Float32) -> float:
    """Squared Euclidean norm, in float64, halves added to halves: the same bits on every machine."""
    total = 0.0
    for begin in range(0, len(values), _SQUARED_AT_ONCE):
        squares = values[begin : begin + _SQUARED_AT_ONCE].astype(np.float64)
        squares *= squares
        while len(squares) > 1:
            half = len(squares) // 2
            odd = squares[2 * half :]
            squares = squares[:half] + squares[half : 2 * half]
            squares[: len(odd)] += odd
        total += float(squares[0])
    return total


def robust_mean(
    shares: Mapping[str, Float32], weights: Mapping[str, float], clips: Mapping[str, float], robust: Robust
) -> tuple[Float32, dict[str, float]]:
    """The mean of the accepted senders' parts.

    Parameters
    ----------
    shares : mapping
        Sender → its part, float32 ``[n]``; senders without a weight are not looked at.
    weights : mapping
        Accepted senders and their weights, in list order.
    clips : mapping
        Sender → factor under 1 on its update, from the decision.
    robust : str
        From the manifest.

    Returns
    -------
    mean : ndarray of float32, shape [n]
    shortened : dict
        Sender → share of it that centered clipping left, for those it left less than ``NAMED_BELOW`` of.

    Raises
    ------
    ValueError
        When nobody has a weight.
    """
    if not weights:
        raise ValueError("a part without accepted senders cannot be reduced")
    method = method_for(robust, len(weights))
    if method == "trimmed":
        return _trimmed([shares[sender] for sender in weights]), {}
    total = np.float32(sum(weights.values()))
    factors = {sender: np.float32(weight) / total for sender, weight in weights.items()}
    if method == "centered":
        return _centered(shares, factors)
    for sender, clip in clips.items():
        factors[sender] *= np.float32(clip)
    return _sum(shares, factors), {}


def own_share(weights: Mapping[str, float], sender: str, robust: Robust) -> float:
    """How much of the mean is the update of ``sender``, as a share of 1."""
    if method_for(robust, len(weights)) == "trimmed":
        return 1.0 / len(weights)
    return weights[sender] / sum(weights.values())


def _sum(terms: Mapping[str, Float32], factors: Mapping[str, np.float32]) -> Float32:
    """Sum of products in list order, multiplication and addition each rounded by itself."""
    parts = [(terms[sender], factor) for sender, factor in factors.items()]
    if not parts:
        raise ValueError("a sum without terms")
    (first, first_factor), *others = parts
    result = np.empty_like(first)
    term = np.empty(min(len(first), _SUMMED_AT_ONCE), dtype=np.float32)
    for begin in range(0, len(first), _SUMMED_AT_ONCE):
        piece = slice(begin, begin + _SUMMED_AT_ONCE)
        total = np.multiply(first[piece], first_factor, out=result[piece])
        for values, factor in others:
            total += np.multiply(values[piece], factor, out=term[: len(total)])
    return result


def _trimmed(shares: list[Float32]) -> Float32:
    trim = trimmed_each_side(len(shares))
    kept = np.float32(len(shares) - 2 * trim)
    mean = np.empty_like(shares[0])
    for begin in range(0, len(mean), _SORTED_AT_ONCE):
        end = begin + _SORTED_AT_ONCE
        ranked = np.stack([share[begin:end] for share in shares])
        ranked.sort(axis=0)
        rows = ranked[trim : len(shares) - trim]
        total = rows[0].copy()
        for row in rows[1:]:
            total += row
        mean[begin:end] = total / kept
    return mean


def _centered(shares: Mapping[str, Float32], weights: Mapping[str, np.float32]) -> tuple[Float32, dict[str, float]]:
    centre: Float32 = np.zeros_like(next(iter(shares.values())))
    kept: dict[str, float] = {}
    for _ in range(CENTERINGS):
        offsets = {sender: shares[sender] - centre for sender in weights}
        lengths = {sender: squared_length(offset) ** 0.5 for sender, offset in offsets.items()}
        reach = median(lengths.values())
        kept = {sender: 1.0 if length <= reach else reach / length for sender, length in lengths.items()}
        centre += _sum(offsets, {sender: weight * np.float32(kept[sender]) for sender, weight in weights.items()})
    return centre, {sender: share for sender, share in kept.items() if share < NAMED_BELOW}
