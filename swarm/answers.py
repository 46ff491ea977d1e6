"""Checking what holders answer. A signature says who answered, not that the answer is right; these are the rules every
honest answer keeps, and one that breaks them costs its sender standing, never this process. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.mixing import without_veto
from blockswarm.swarm.errors import UntrustedAnswerError

if TYPE_CHECKING:
    from blockswarm.swarm.link import Reply

Float32 = NDArray[np.float32]

ROW_BYTES = VOCABULARY * 4

NORMALISATION_TOLERANCE = 1e-3
"""Largest |logsumexp| of a row of log-probabilities; float32 rounding of an honest one stays under 1e-5."""


def check_rows(reply: Reply, rows: int) -> Float32:
    """Log-probabilities in ``reply``: float32 ``[rows, 256]``, finite, normalised; none below ``VETO_FLOOR``.

    Raises
    ------
    UntrustedAnswerError
        Naming the rule that was broken.
    """
    values = _values(reply, rows, VOCABULARY, "log-probabilities")
    # Row maxima of normalised rows lie between -ln 256 and 0, so the exponentials neither overflow nor all vanish.
    top = values.max(axis=1)
    with np.errstate(over="ignore", divide="ignore"):
        total = np.log(np.exp(values.astype(np.float64)).sum(axis=1))
    worst = float(np.abs(total).max())
    if not (float(top.max()) <= NORMALISATION_TOLERANCE and worst < NORMALISATION_TOLERANCE):
        raise UntrustedAnswerError(f"probabilities sum to e^{worst:.3g}, not to 1")
    return without_veto(values)


def check_hidden(reply: Reply, positions: int, dim: int) -> Float32:
    """The z of a sweep in ``reply``: float32 ``[positions, dim]``, finite.

    Raises
    ------
    UntrustedAnswerError
        Naming the rule that was broken.
    """
    return _values(reply, positions, dim, "z")


def _values(reply: Reply, rows: int, columns: int, what: str) -> Float32:
    due = rows * columns * 4
    if len(reply.blob) != due:
        raise UntrustedAnswerError(f"{what}: {len(reply.blob)} bytes instead of {due} ([{rows}, {columns}] float32)")
    values = np.frombuffer(reply.blob, dtype="<f4").reshape(rows, columns)
    if not np.isfinite(values).all():
        raise UntrustedAnswerError(f"{what}: not all values are finite")
    return values.astype(np.float32, copy=False)
