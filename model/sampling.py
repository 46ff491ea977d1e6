"""Choosing a byte from log-probabilities, so that a seed means one text.

The randomness of a byte comes from (seed, absolute position) alone. Drafting and verifying, one byte at a time or many,
resuming on another holder: the same seed gives the same text.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError, OptionError
from blockswarm.model.layout import Float32, philox
from blockswarm.naming import option

Float64 = NDArray[np.float64]


@functools.lru_cache(maxsize=256)  # a position is drawn several times: by drafters, and when its byte is decided
def gumbel_noise(seed: int, position: int) -> Float64:
    """Standard Gumbel noise, float64 ``[256]``, of one absolute position; Philox counters keyed by ``seed``.

    Read-only: callers share it.
    """
    raw = philox("sample", seed, counter=position * (VOCABULARY // 4)).random_raw(VOCABULARY)
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Float64 = -np.log(-np.log(uniform))
    noise.setflags(write=False)
    return noise


def sample_byte(
    logp: Float32,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int,
    position: int,
) -> int:
    """One byte drawn from ``softmax(logp / temperature)``, cut to the likeliest bytes.

    Gumbel-max: of the bytes kept, the one with the largest ``logp / temperature + gumbel(seed, position)`` is a fair
    draw.

    Parameters
    ----------
    logp : float32 ``[256]``
        Natural-log probabilities; −inf excludes a byte.
    temperature : float
        0 takes the likeliest byte (the smaller one on a tie); above, larger is more varied.
    top_k : int
        Keep only the k likeliest bytes; 0 keeps all.
    top_p : float
        Then keep the fewest likeliest bytes whose tempered probabilities reach this sum; 1 keeps all.
    seed : int
        Names the text.
    position : int
        Absolute index in the text of the byte being chosen.

    Returns
    -------
    int
        0 … 255.

    Raises
    ------
    ModelError
        If an option is out of range, or ``logp`` has the wrong shape, a NaN, or no possible byte.
    """
    check_sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    if logp.shape != (VOCABULARY,):
        raise ModelError(f"log-probabilities have shape {list(logp.shape)}, expected [{VOCABULARY}]")
    best = int(np.argmax(logp))
    if not np.isfinite(logp[best]):  # argmax returns the first NaN, if there is one
        raise ModelError("log-probabilities hold a NaN or allow no byte at all")
    if temperature == 0.0:
        return best
    scores = _scores(logp, temperature)
    if top_k or top_p < 1.0:
        order = np.argsort(-scores, kind="stable")
        kept = order[: top_k or VOCABULARY]
        if top_p < 1.0:
            mass = np.exp(scores[kept])
            reached = np.cumsum(mass) / mass.sum()
            kept = kept[: int(np.searchsorted(reached, top_p)) + 1]
        cut = np.full(VOCABULARY, -np.inf)
        cut[kept] = scores[kept]
        scores = cut
    return int(np.argmax(scores + gumbel_noise(seed, position)))


def is_settled(
    logp: Float32,
    *,
    tolerance: float,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int,
    position: int,
) -> bool:
    """Whether ``sample_byte`` gives the same byte for all log-probabilities that near.

    The same row computed in windows of other lengths, or on another machine, differs by float32 rounding. A choice that
    rounding could turn is not settled.

    Parameters
    ----------
    logp : float32 ``[256]``
        Natural-log probabilities that ``sample_byte`` takes.
    tolerance : float
        Largest difference of any of them, nats.
    temperature, top_k, top_p, seed, position
        As for ``sample_byte``.

    Returns
    -------
    bool
        True only if no such difference can change the byte; False may be cautious where bytes are cut off.
    """
    shift = 2.0 * tolerance  # two bytes move against each other by so much at most
    if temperature == 0.0:
        first, second = np.partition(logp, VOCABULARY - 2)[:-3:-1]
        return bool(float(first) - float(second) > shift)
    surely = maybe = np.ones(VOCABULARY, bool)
    if top_k or top_p < 1.0:
        surely, maybe = _cut_within(logp, shift, temperature, top_k, top_p)
    drawn = _scores(logp, temperature) + gumbel_noise(seed, position)
    drawn[~maybe] = -np.inf
    second, winner = np.argpartition(drawn, VOCABULARY - 2)[-2:]
    return bool(surely[winner] and drawn[winner] - drawn[second] > shift / temperature)


def _scores(logp: Float32, temperature: float) -> Float64:
    """Tempered log-probabilities, 0 for the likeliest byte: shifted first, a tiny temperature does not overflow."""
    return np.asarray((logp.astype(np.float64) - float(logp.max())) / temperature, dtype=np.float64)


def _cut_within(
    logp: Float32, shift: float, temperature: float, top_k: int, top_p: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Bytes that top-k and top-p keep for all, and those they keep for any, log-probabilities that near."""
    wide = logp.astype(np.float64)
    order = np.argsort(-wide, kind="stable")
    ranked = wide[order]
    surely = maybe = np.ones(VOCABULARY, bool)
    if 0 < top_k < VOCABULARY:
        surely, maybe = wide > ranked[top_k] + shift, wide >= ranked[top_k - 1] - shift
    if top_p < 1.0:
        mass = np.exp((wide - ranked[0]) / temperature)
        mass /= mass[order[: top_k or VOCABULARY]].sum()
        before = np.concatenate([np.zeros(1), np.cumsum(mass[order])])
        # The mass in front of a byte: with all that may overtake it, and without all that it may overtake.
        most = before[np.searchsorted(-ranked, -(wide - shift), side="right")] - mass
        least = before[np.searchsorted(-ranked, -(wide + shift), side="left")]
        factor = np.exp(min(2.0 * shift / temperature, 700.0))
        surely, maybe = surely & (most * factor < top_p), maybe & (least / factor < top_p)
        maybe[order[0]] = True  # the likeliest byte is always kept
    return surely, maybe


def check_sampling(*, temperature: float, top_k: int, top_p: float) -> None:
    """Raise ``OptionError`` naming the first sampling option that is out of range."""
    if not 0.0 <= temperature < float("inf"):
        raise OptionError(f"{option('temperature')} {temperature}: must be 0 (likeliest byte) or a positive number")
    if not 0 <= top_k <= VOCABULARY:
        raise OptionError(f"{option('top_k')} {top_k}: must lie between 0 (off) and {VOCABULARY}")
    if not 0.0 < top_p <= 1.0:
        raise OptionError(f"{option('top_p')} {top_p}: must be above 0 and at most 1 (off)")
