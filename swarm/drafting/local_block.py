"""One block of the model, run by the client itself, as the predictor of a drafter."""

from __future__ import annotations

from blockswarm.model.numpy_block import NumpyBlock
from blockswarm.model.windows import shared, window_start
from blockswarm.swarm.answers import Float32


class BlockPredictor:
    """Predicts the next byte of one text after another with one block alone.

    What a text shares with the one before is not computed again: a draft grows byte by byte, and where the swarm took
    another byte, the cache is cut back to there. Windows are those of the swarm, so the rows are the block's own.

    Parameters
    ----------
    block : NumpyBlock
        The block.
    """

    def __init__(self, block: NumpyBlock) -> None:
        self._block = block
        self._cache = block.open()
        self._window = b""
        self._row: Float32 | None = None

    def __call__(self, text: bytes) -> Float32:
        """Log-probabilities, float32 ``[256]``, of the byte after ``text``."""
        window = text[window_start(len(text) - 1, self._block.config.context) :]
        if self._row is not None and window == self._window:
            return self._row
        known = shared(self._window[: len(window) - 1], window)
        self._cache.truncate(known)
        self._window, self._row = window, self._block.extend(self._cache, window[known:])[-1]
        return self._row
