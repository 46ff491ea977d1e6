"""The outer optimizer: what a commit makes of the averaged update (DiLoCo, Douillard et al. 2023).

With ``outer = "none"`` the state gains the mean itself. ``"nesterov"`` treats it as the negative gradient of one large
step with momentum. The momentum is part of the committed state: without it two voters would not compute the same next
state. Every operation is one float32 rounding an element, in the order written, so all of them do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


def outer_step(mean: Float32, velocity: Float32, *, momentum: float, rate: float) -> tuple[Float32, Float32]:
    """One Nesterov step along the mean update.

    ``velocity' = momentum · velocity + mean``, ``step = rate · (mean + momentum · velocity')``, with both constants
    rounded to float32 first.

    Parameters
    ----------
    mean : ndarray of float32
        The averaged update, as everyone decoded it.
    velocity : ndarray of float32
        The momentum of the parent state, same shape; zeros at the genesis.
    momentum, rate : float
        From the manifest.

    Returns
    -------
    (ndarray of float32, ndarray of float32)
        What is added to the parent's values, and the momentum of the new state.
    """
    share, scale = np.float32(momentum), np.float32(rate)
    moved = share * velocity
    moved += mean
    step = share * moved
    step += mean
    step *= scale
    return step, moved
