"""What production code computes in pieces or in torch, written down plainly."""

from __future__ import annotations

import numpy as np

from blockswarm.model.layout import Float32
from blockswarm.model.mixing import normalise_log_probs
from blockswarm.model.scoring import Bytes, Predict, cut_windows


def mix_with(blocks: Float32, ngram: Float32, weight: float) -> Float32:
    """The geometric mixture of the blocks' readout with an n-gram model: log softmax((1 − w) · blocks + w · n-gram)."""
    return normalise_log_probs((1.0 - weight) * blocks.astype(np.float64) + weight * ngram.astype(np.float64))


def next_byte_log_probs(
    predict: Predict, text: Bytes, context: int, *, at_once: int = 64, first: int = 1
) -> np.ndarray:
    """ln p of the bytes of ``text`` from ``first`` (at least 1) on, each given the bytes before it in its window."""
    parts = [np.empty(0)]
    done = first
    for windows, starts, take_from in cut_windows(text[:-1], context, at_once, first - 1):
        rows = predict(windows, starts)[:, take_from:].reshape(-1, 256).astype(np.float64)
        parts.append(rows[np.arange(len(rows)), text[done : done + len(rows)]])
        done += len(rows)
    return np.concatenate(parts)
