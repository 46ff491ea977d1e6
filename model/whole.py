"""A whole model in one process: all its blocks, and their two readouts as the swarm serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.block import Cache
from blockswarm.model.config import ModelConfig, Recipe
from blockswarm.model.layout import Float32
from blockswarm.model.mixing import Readout, mix_counts, mix_log_probs, sweep_noise, without_veto
from blockswarm.model.ngram import NgramModel
from blockswarm.model.readout import BlockReader
from blockswarm.model.scoring import Predict

POSITIONS_AT_ONCE = 4096
"""Positions that are best given to ``predict`` in one call; bounds its memory: a kilobyte a position and block."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Expert:
    """N-gram counts that are mixed into the parallel readout."""

    counts: NgramModel
    weight: float
    """Their share of the log-probabilities, 0 … 1."""

    def beside(self, blocks: Float32, windows: Bytes) -> Float32:
        """The mixture with what the blocks say of ``windows``: ``[n, t, 256]`` from uint8 ``[n, t]``."""
        return mix_counts(blocks, without_veto(self.counts.log_probs(windows)), self.weight)

    def beside_last(self, blocks: Float32, window: Bytes) -> Float32:
        """The same of the last row alone: float32 ``[256]`` from uint8 ``[t]``."""
        rows = self.counts.log_probs(window[None, -self.counts.header.order :])
        return mix_counts(blocks, without_veto(rows[0, -1]), self.weight)


class WholeModel:
    """Fixed states of all blocks of a model.

    Parameters
    ----------
    config, recipe
        The model and its noise levels.
    blocks : sequence of float32 vectors
        The weights of every block, block 0 first.
    embedding : float32 vector
        The shared table.
    device : str
        Torch device, or ``auto``.
    expert : Expert, optional
        Counts to mix into the parallel readout. The sweep, the paper's readout, is of the blocks alone.

    Raises
    ------
    ModelError
        If an array does not fit the configuration, or there is no such device.
    """

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        blocks: Sequence[Float32],
        embedding: Float32,
        device: str = "auto",
        *,
        expert: Expert | None = None,
    ) -> None:
        self.config = config
        self._expert = expert
        self._readers = [
            BlockReader(config, recipe, block, theta, embedding, device) for block, theta in enumerate(blocks)
        ]

    @property
    def windows_at_once(self) -> int:
        """Full windows that are best predicted in one call."""
        return max(1, POSITIONS_AT_ONCE // self.config.context)

    def predictor(self, readout: Readout, seed: int = 0) -> Predict:
        """One of the readouts as a function of windows; ``seed`` is that of the sweep's noise."""
        return self._parallel if readout == "parallel" else partial(self._sweep, seed)

    def next_byte_predictor(self, readout: Readout, seed: int = 0) -> Callable[[Bytes, int], Float32]:
        """The same for one byte after another: ``predict(window, start)`` gives the log-probabilities, float32
        ``[256]``, of the byte after ``window``, uint8 ``[t]``, whose first byte stands at ``start``."""
        if readout == "parallel":
            return _WindowReader(self._readers, self._expert).last_row
        return lambda window, start: self._sweep(seed, window[None], np.array([start]))[0, -1]

    def _parallel(self, windows: Bytes, starts: NDArray[np.int64]) -> Float32:
        """Every block alone at z = 0; the mean of their log-probabilities, renormalised."""
        del starts  # no noise, so a window's place in the text does not matter
        rows = mix_log_probs([without_veto(reader.log_probs(windows)) for reader in self._readers])
        return rows if self._expert is None else self._expert.beside(rows, windows)

    def _sweep(self, seed: int, windows: Bytes, starts: NDArray[np.int64]) -> Float32:
        """z travels through the blocks in order; the last one's log-probabilities."""
        length, dim = windows.shape[1], self.config.dim
        z: Float32 | None = np.stack([sweep_noise(seed, int(start), length, dim) for start in starts])
        for reader in self._readers:
            assert z is not None  # only the last block gives none
            rows, z = reader.sweep_step(windows, z)
        return without_veto(rows)


class _WindowReader:
    """The parallel readout's last row of one window after another, as a text grows.

    What a window shares with the one before is not computed again.
    """

    def __init__(self, readers: Sequence[BlockReader], expert: Expert | None) -> None:
        self._readers = readers
        self._expert = expert
        self._caches: list[Cache] = []
        self._seen = np.empty(0, dtype=np.uint8)

    def last_row(self, window: Bytes, start: int) -> Float32:
        del start  # no noise, so a window's place in the text does not matter
        seen = len(self._seen)
        if not 0 < seen < len(window) or not np.array_equal(window[:seen], self._seen):
            self._caches, seen = [reader.open() for reader in self._readers], 0
        self._seen = window
        pairs = zip(self._readers, self._caches, strict=True)
        rows = [reader.extend([(cache, window[seen:])])[0][-1] for reader, cache in pairs]
        mixed = mix_log_probs([without_veto(row) for row in rows])
        if self._expert is None:
            return mixed
        return self._expert.beside_last(mixed, window)
