"""How well a text is predicted: exact teacher-forced cross-entropy over a whole text, with its uncertainty.

One rule says which context a byte is predicted from (``windows.plan_windows``), so a model folder, an experiment and
a live swarm give the same number for the same text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.errors import ModelError
from blockswarm.model.layout import Float32
from blockswarm.model.windows import plan_windows

STRETCH = 1024
"""Bytes taken together as one draw for the standard error: neighbouring bytes are hard or easy together."""

Bytes = NDArray[np.uint8]
Predict = Callable[[Bytes, NDArray[np.int64]], Float32]
"""Windows uint8 ``[n, t]`` and the absolute position of each one's first byte, int64 ``[n]``, to natural-log
probabilities float32 ``[n, t, 256]`` of the byte after each."""


@dataclass(frozen=True)
class TextScore:
    """The cross-entropy of a text."""

    nats_per_byte: float
    """Mean of −ln p over the predicted bytes."""
    bytes: int
    """Bytes predicted: all but the first, which is context."""
    ci95: float | None
    """Half width of the 95 % confidence interval of the mean, nats per byte; None for a text of one stretch."""

    @property
    def bits_per_byte(self) -> float:
        """The same in bits."""
        return self.nats_per_byte / math.log(2.0)


def score_of(log_probs: NDArray[np.floating]) -> TextScore:
    """Summarise the log-probabilities of a text's bytes.

    Parameters
    ----------
    log_probs : float ``[m]``
        ln p of each predicted byte, in order.

    Returns
    -------
    TextScore
        Its interval is 1.96 standard errors of the means of stretches of ``STRETCH`` bytes.

    Raises
    ------
    ModelError
        If there is nothing to summarise.
    """
    if not len(log_probs):
        raise ModelError("no byte was predicted: a text needs at least two")
    wide = -log_probs.astype(np.float64)
    stretches = len(wide) // STRETCH
    ci95 = None
    if stretches > 1:
        means = wide[: stretches * STRETCH].reshape(stretches, STRETCH).mean(axis=1)
        ci95 = float(1.96 * means.std(ddof=1) / math.sqrt(stretches))
    return TextScore(float(wide.mean()), len(wide), ci95)


def cut_windows(
    text: Bytes, context: int, at_once: int, first: int = 0
) -> Iterator[tuple[Bytes, NDArray[np.int64], int]]:
    """The windows that together give the rows of ``text`` from ``first`` on once, in batches of equal shape, in order.

    Parameters
    ----------
    text : uint8 ``[m]``
        Bytes to be read.
    context : int
        Bytes in a full window.
    at_once : int
        Most windows in a batch.
    first : int
        The first row wanted.

    Yields
    ------
    (uint8 ``[n, t]``, int64 ``[n]``, int)
        Windows, the position of each one's first byte, and the row of a window from which on its rows count.
    """
    batch: list[tuple[int, int, int]] = []
    for window in plan_windows(len(text), context, first):
        if batch and (len(batch) == at_once or _shape(window) != _shape(batch[0])):
            yield _stack(text, batch)
            batch = []
        batch.append(window)
    if batch:
        yield _stack(text, batch)


def _shape(window: tuple[int, int, int]) -> tuple[int, int]:
    start, stop, take_from = window
    return stop - start, take_from


def _stack(text: Bytes, batch: list[tuple[int, int, int]]) -> tuple[Bytes, NDArray[np.int64], int]:
    windows = np.stack([text[start:stop] for start, stop, _ in batch])
    return windows, np.array([start for start, _, _ in batch]), batch[0][2]
