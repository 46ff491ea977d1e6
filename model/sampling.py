"""Choosing a byte from log-probabilities, so that a seed means one text.

The randomness of a byte comes from (seed, absolute position) alone. Drafting and verifying, one byte at a time or many,
resuming on another holder: the same seed gives the same text.
"""

from __future__ import annotations

import numpy as np

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError, OptionError
from blockswarm.model.layout import Float32, philox
from blockswarm.naming import option


def gumbel_noise(seed: int, position: int) -> np.ndarray:
    """Standard Gumbel noise, float64 ``[256]``, of one absolute position; Philox counters keyed by ``seed``."""
    raw = philox("sample", seed, counter=position * (VOCABULARY // 4)).random_raw(VOCABULARY)
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


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
    # Shifting by the maximum first keeps a tiny temperature from overflowing.
    scores = (logp.astype(np.float64) - float(logp[best])) / temperature
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


def check_sampling(*, temperature: float, top_k: int, top_p: float) -> None:
    """Raise ``OptionError`` naming the first sampling option that is out of range."""
    if not 0.0 <= temperature < float("inf"):
        raise OptionError(f"{option('temperature')} {temperature}: must be 0 (likeliest byte) or a positive number")
    if not 0 <= top_k <= VOCABULARY:
        raise OptionError(f"{option('top_k')} {top_k}: must lie between 0 (off) and {VOCABULARY}")
    if not 0.0 < top_p <= 1.0:
        raise OptionError(f"{option('top_p')} {top_p}: must be above 0 and at most 1 (off)")
