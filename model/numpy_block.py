"""A block without torch, for reading one text byte by byte: what a client drafts with.

The same function as ``blockswarm.model.block`` at z = 0 and the readout's noise level, to float32 rounding. It is no
replacement: one sequence, no gradients, one core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY, ModelConfig, Recipe
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import TIME_FREQUENCIES, Float32, block_layout, embedding_layout
from blockswarm.model.ngram_rows import hashed_rows
from blockswarm.model.partition import readout_sigma
from blockswarm.model.precondition import c_noise, c_out

ROTARY_BASE = 1000.0
"""As ``blockswarm.model.block``."""

NORM_EPSILON = 1e-5
"""Of torch's layer norm."""


@dataclass
class TextCache:
    """What a block remembers of the window it has read."""

    line: NDArray[np.int64]
    """``reach`` times "before the start", then the bytes read."""
    keys: Float32
    """Rotated keys ``[layers, heads, context, dim / heads]``, filled up to ``length``."""
    values: Float32
    length: int = 0
    """Bytes read so far."""

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` bytes."""
        self.length = min(self.length, length)


class NumpyBlock:
    """A fixed state of one block. Never changes; each cache belongs to one text.

    Parameters
    ----------
    config, recipe
        The model and its noise levels.
    number : int
        Which block this is.
    theta, embedding : float32 vectors
        Its weights and the shared table. Not copied.

    Raises
    ------
    ModelError
        If an array does not fit the configuration, or there is no such block.
    """

    def __init__(self, config: ModelConfig, recipe: Recipe, number: int, theta: Float32, embedding: Float32) -> None:
        self.config = config
        self._number = number
        self._weights = w = block_layout(config).views(theta)
        table = embedding_layout(config).views(embedding)["table"]
        table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        sigma = readout_sigma(recipe, config.blocks, number)
        scale = math.exp(float(w["log_scale"][0])) / recipe.sigma_data**2 * c_out(sigma, recipe.sigma_data)
        self._logits: Float32 = (table * np.float32(scale)).T.astype(np.float32)
        angles = c_noise(sigma) * math.pi * np.arange(1, TIME_FREQUENCIES + 1) / 2
        self._time: Float32 = w["time"] @ np.concatenate([np.sin(angles), np.cos(angles)]).astype(np.float32)
        window = config.mlp_window if config.kind == "mlp" else 1
        self._reach = max(config.previous_bytes, config.ngram_tables, window - 1)
        half = config.dim // config.heads // 2
        speed = ROTARY_BASE ** -(np.arange(half) / half)
        turns = np.exp(1j * np.arange(config.context)[:, None] * speed)
        self._turns: NDArray[np.complex64] = turns.astype(np.complex64)

    def open(self) -> TextCache:
        """An empty cache."""
        c = self.config
        layers = c.layers if c.kind == "transformer" else 0
        shape = (layers, c.heads, c.context, c.dim // c.heads)
        line = np.full(self._reach + c.context, VOCABULARY, np.int64)
        return TextCache(line, np.empty(shape, np.float32), np.empty(shape, np.float32))

    def extend(self, cache: TextCache, new: bytes) -> Float32:
        """Read on.

        Parameters
        ----------
        cache : TextCache
            The window so far; extended.
        new : bytes
            At least one.

        Returns
        -------
        ndarray, float32 ``[len(new), 256]``
            Natural log, normalised; the rows that ``BlockReader.log_probs`` gives for these bytes.

        Raises
        ------
        ModelError
            If the window would be longer than the model's context, or nothing is new.
        """
        start, stop = cache.length, cache.length + len(new)
        if not new or stop > self.config.context:
            raise ModelError(f"window of {start} bytes read on by {len(new)}: the context is {self.config.context}")
        w = self._weights
        cache.line[self._reach + start : self._reach + stop] = np.frombuffer(new, np.uint8)
        h = self._read_bytes(cache.line[start : self._reach + stop]) + self._time
        for layer in range(self.config.layers):
            if self.config.kind == "transformer":
                h = h + self._attend(layer, h, start, cache)
            a = _norm(h, w[f"{layer}.mlp_norm"]) @ w[f"{layer}.mlp_in"].T
            h = h + np.maximum(a, 0.0) @ w[f"{layer}.mlp_out"].T
        cache.length = stop
        logits = _norm(h, w["out_norm"]) @ w["out"].T @ self._logits
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), dtype=np.float32)

    def _read_bytes(self, line: NDArray[np.int64]) -> Float32:
        """The input of each row, ``[t, dim]``; ``line`` begins ``reach`` bytes before the first of them."""
        c, w, reach = self.config, self._weights, self._reach
        t = len(line) - reach
        h = np.zeros((t, c.dim), np.float32)
        for back in range(c.previous_bytes + 1):
            # The table of the current byte stands first, that of the byte before it second, and so on.
            h += w["bytes"][line[reach - back : reach - back + t] + back * (VOCABULARY + 1)]
        if tables := c.ngram_tables:
            last = np.lib.stride_tricks.sliding_window_view(line[reach - tables :], tables + 1)
            rows = np.stack(hashed_rows(last, tables, c.ngram_rows, salt=self._number), axis=-1)
            h += w["ngrams"][rows].reshape(t, -1) @ w["ngrams_in"].T
        if c.kind == "mlp":
            window = np.lib.stride_tricks.sliding_window_view(line[reach - c.mlp_window + 1 :], c.mlp_window)
            h += w["window_bytes"][window].reshape(t, -1) @ w["window_in"].T
        return h

    def _attend(self, layer: int, h: Float32, start: int, cache: TextCache) -> Float32:
        """Causal self-attention with rotary positions, ``[t, dim]``."""
        w, heads = self._weights, self.config.heads
        t, d = h.shape
        stop = start + t
        qkv = (_norm(h, w[f"{layer}.attention_norm"]) @ w[f"{layer}.qkv"].T).reshape(t, 3, heads, d // heads)
        pairs = np.ascontiguousarray(qkv[:, :2]).view(np.complex64) * self._turns[start:stop, None, None]
        turned = pairs.view(np.float32)
        cache.keys[layer, :, start:stop] = turned[:, 1].transpose(1, 0, 2)
        cache.values[layer, :, start:stop] = qkv[:, 2].transpose(1, 0, 2)
        query = turned[:, 0].transpose(1, 0, 2)
        scores = query @ cache.keys[layer, :, :stop].transpose(0, 2, 1) * np.float32((d // heads) ** -0.5)
        if t > 1:
            scores[:, ~np.tri(t, stop, start, dtype=bool)] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = scores @ cache.values[layer, :, :stop]
        return np.asarray(seen.transpose(1, 0, 2).reshape(t, d) @ w[f"{layer}.attention_out"].T, dtype=np.float32)


def _norm(h: Float32, weight: Float32) -> Float32:
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + NORM_EPSILON) * weight, dtype=np.float32)
