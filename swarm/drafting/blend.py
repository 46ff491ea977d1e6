"""The drafter: a predictor of one's own, corrected by what stands in the text and by what the swarm has said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.drafter import Choose, Predict
from blockswarm.swarm.drafting.memory import RowMemory

Float64 = NDArray[np.float64]

TEXT_SEARCHED = 16_384
"""Bytes at the end of a text that are searched."""

OCCURRENCES = 32
"""The latest occurrences of a context that are counted."""


@dataclass(frozen=True)
class Blend:
    """Which contexts are looked at, and what they count."""

    text_orders: tuple[int, ...]
    """Lengths of context that are looked for in the text, ascending."""
    row_trust: Mapping[int, float]
    """Lengths of context at which the swarm's rows are looked for, with the share of the prediction that they get."""


ALONE = Blend((1, 2, 3, 5), {1: 0.7, 2: 0.8, 3: 0.9, 4: 0.95, 6: 0.95})
"""Without a predictor everything is welcome."""

OVER_PREDICTOR = Blend((8,), {4: 0.5, 6: 0.9})
"""A predictor knows better than short contexts do. Both were chosen on a trained model of size ``tiny``, where they
are flat: a few steps up or down change little."""

OVER_TARGET = Blend((), {6: 0.5})
"""A predictor with the run's counts is half of what the swarm answers, or nearly all of it with a block: what stands
in the text, and rows after short contexts, only lead it astray (measured: 13 bytes a round trip instead of 10)."""

ORDERS = tuple(sorted({*ALONE.row_trust, *OVER_PREDICTOR.row_trust, *OVER_TARGET.row_trust}))
"""Lengths of context under which rows are remembered."""


class BlendDrafter:
    """Predicts byte by byte from three sources, each closer to the text than the one before.

    A predictor (or nothing: all bytes alike); the bytes that followed the same context earlier in prompt and output,
    interpolated from short contexts to long ones (Witten-Bell, as ``blockswarm.model.ngram``); and the rows that the
    swarm gave after the same context, in this text or an earlier one.

    Parameters
    ----------
    base : callable, optional
        The predictor.
    memory : RowMemory, optional
        Where the swarm's rows are kept, by ``ORDERS``; by default a new one, for this drafter alone.
    heavy : bool
        Whether ``base`` takes milliseconds.
    blend : Blend, optional
        What stands over ``base``; by default what suits a predictor of unknown kind, or none.
    """

    def __init__(
        self,
        base: Predict | None = None,
        *,
        memory: RowMemory | None = None,
        heavy: bool = False,
        blend: Blend | None = None,
    ) -> None:
        self.heavy = heavy
        self._base = base
        self._blend = blend or (ALONE if base is None else OVER_PREDICTOR)
        self._orders = sorted({*self._blend.text_orders, *self._blend.row_trust})
        self._memory = RowMemory(ORDERS) if memory is None else memory

    def propose(self, text: bytes, most: int, choose: Choose) -> bytes:
        """``most`` bytes that may follow ``text``."""
        known = bytearray(text)
        for _ in range(most):
            known.append(choose(self.predict(bytes(known)), len(known)))
        return bytes(known[len(text) :])

    def learn(self, text: bytes, rows: Float32) -> None:
        """Remember what the swarm predicts after the last prefixes of ``text``."""
        for number, row in enumerate(rows):
            self._memory.add(text[: len(text) - len(rows) + 1 + number], row)

    def predict(self, text: bytes) -> Float32:
        """Log-probabilities of the byte after ``text``, float32 ``[256]``."""
        mix: Float64 = np.full(VOCABULARY, 1.0 / VOCABULARY)
        if self._base is not None:
            mix = np.exp(self._base(text).astype(np.float64))
        recent = text[-TEXT_SEARCHED:]
        for order in self._orders:
            if order > len(text):
                break
            context = text[-order:]
            if order in self._blend.text_orders:
                mix = _counted(recent, context, mix)
            if order in self._blend.row_trust and (row := self._memory.mean(context)) is not None:
                trust = self._blend.row_trust[order]
                mix = trust * row + (1.0 - trust) * mix
        return np.log(np.maximum(mix, 1e-30)).astype(np.float32)


def _counted(text: bytes, context: bytes, lower: Float64) -> Float64:
    """Witten-Bell: what followed ``context`` in ``text``, over the prediction ``lower`` of a shorter context."""
    followers: list[int] = []
    end = len(text)  # the context at the very end is the one that is asked about: nothing follows it
    while len(followers) < OCCURRENCES and (at := text.rfind(context, 0, end - 1)) >= 0:
        followers.append(text[at + len(context)])
        end = at + len(context)
    if not followers:
        return lower
    kinds = len(set(followers))
    mixed = lower * (kinds / (len(followers) + kinds))
    np.add.at(mixed, followers, 1.0 / (len(followers) + kinds))
    return mixed
