"""Whether a volunteer's text is still worth training on: held-out CE that goes up while training CE falls."""

from __future__ import annotations

import math

from blockswarm.naming import option

ROUNDS_UP = 5
"""Evaluations in a row without a better one before anything is said."""

LEAST_RISE = 0.03
"""Rise of the held-out CE that counts, nats per byte: several times what one evaluation scatters."""

LEAST_FALL = 0.02
"""Fall of the training CE since the best evaluation that counts, nats per byte."""

MORE_RISE = 0.25
"""It is said again whenever the held-out CE has risen by so much more, nats per byte."""


class FitWatch:
    """Told after every round how training goes, it says when the text is being learned by heart, and how far."""

    def __init__(self) -> None:
        self._best = math.inf
        self._loss_at_best = math.inf
        self._since_best = 0
        self._told = -math.inf
        """Held-out CE above which there is something to say again."""

    def after(self, loss: float | None, heldout_ce: float | None) -> str | None:
        """The line to show after a round with these figures (nats per byte), usually none."""
        if loss is None or heldout_ce is None or not (math.isfinite(loss) and math.isfinite(heldout_ce)):
            return None
        if heldout_ce < self._best:
            self._best, self._loss_at_best = heldout_ce, loss
            self._since_best, self._told = 0, -math.inf
            return None
        self._since_best += 1
        rises = heldout_ce > self._best + LEAST_RISE
        falls = loss < self._loss_at_best - LEAST_FALL
        if heldout_ce < self._told or self._since_best < ROUNDS_UP or not (rises and falls):
            return None
        self._told = heldout_ce + MORE_RISE
        return (
            f"held-out CE has gone up to {heldout_ce:.3f} since it was {self._best:.3f} {self._since_best} rounds ago, "
            f"while training CE fell to {loss:.3f}: the text is too small for so much training (overfitting); "
            f"stop and go back to an older checkpoint or export, or give a larger text with {option('data')}"
        )
