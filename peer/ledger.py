"""What of our work is in the certified state already, and what is still ours to bring in (docs/protocol.md §7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


@dataclass
class Ledger:
    """Samples behind the update of one subject.

    The live weights are always ``certified state + pending work``. A round takes a snapshot of the pending work; what
    the round makes of it decides how much stays pending.
    """

    pending: float = 0.0
    """Samples in the live weights that no certified state contains."""
    _counted: int = 0

    def snapshot(self, trained: int) -> int:
        """Samples behind a snapshot taken when ``trained`` samples have been trained in all."""
        self.pending += trained - self._counted
        self._counted = trained
        return int(self.pending)

    def settle(self, samples: int, kept: float) -> None:
        """A snapshot of ``samples`` has been committed; the share ``kept`` of its work stays pending (0: all is in)."""
        self.pending = max(0.0, self.pending - samples * (1.0 - kept))

    def restart(self, trained: int) -> None:
        """The live weights were replaced: nothing is pending."""
        self.pending, self._counted = 0.0, trained


def kept_share(accepted: bool, late: Literal["carry", "drop"], discount: float) -> float:
    """Which share of a snapshot's work stays pending once its round has committed."""
    if accepted:
        return 0.0
    return discount if late == "carry" else 0.0


def correction(old: Float32, new: Float32, delta: Float32, sent: Float32 | None, kept: float) -> Float32:
    """What to add to the live weights after a commit, float32 of the subject's length.

    Live weights are ``old + delta + later``, where ``later`` is what was trained since the snapshot. They become
    ``new + residual + later``: the residual is what the average does not contain of our update (rounding of the
    encoding, parts left out), or the kept share of it when it was not accepted at all. So nothing is lost and nothing
    is counted twice; this is error feedback and carry in one.

    Parameters
    ----------
    old, new : ndarray of float32
        The parent and the newly certified state.
    delta : ndarray of float32
        Our update in this round's snapshot.
    sent : ndarray of float32 or None
        What the average contains of it; ``None`` when it was not accepted.
    kept : float
        Share of an update that was not accepted that stays (see `kept_share`).
    """
    change = new - old
    if sent is not None:
        change -= sent
    elif kept < 1.0:
        change -= np.float32(1.0 - kept) * delta
    return change
