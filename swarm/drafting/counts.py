"""Drafting from the run's counts: alone, or mixed with one block as the swarm mixes them with all."""

from __future__ import annotations

from blockswarm.model.mixing import mix_counts, without_veto
from blockswarm.model.ngram import NgramModel
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.drafter import Predict


class MixedPredictor:
    """One predictor for all blocks, and the counts beside it: what comes nearest to the swarm's own mixture.

    Parameters
    ----------
    block : callable
        Stands for the blocks.
    counts : NgramModel
        The run's counts.
    weight : float
        Their share, as the manifest has it.
    """

    def __init__(self, block: Predict, counts: NgramModel, weight: float) -> None:
        self._block, self._counts, self._weight = block, counts, weight

    def __call__(self, text: bytes) -> Float32:
        """Log-probabilities, float32 ``[256]``, of the byte after ``text``."""
        return mix_counts(self._block(text), without_veto(self._counts.next_log_probs(text)), self._weight)
