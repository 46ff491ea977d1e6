"""AdamW over one flat vector: torch's fused kernel through its functional form.

``torch.optim.AdamW`` would do the same, but making any ``torch.optim.Optimizer`` imports torch's compiler, and SymPy
with it: 75 MB and a second or two that a volunteer has no use for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

EPSILON = 1e-8


class FlatAdamW:
    """Decoupled weight decay Adam (Loshchilov & Hutter, arXiv:1711.05101) of one float32 vector, in place.

    Parameters
    ----------
    values, gradient : Tensor
        The vector and its gradient, float32 ``[n]``; both are kept, not copied.
    betas : (float, float)
        Decay of the averages of the gradient and of its square.
    weight_decay : float
        Share of the values subtracted per step, times the rate.
    """

    def __init__(self, values: Tensor, gradient: Tensor, *, betas: tuple[float, float], weight_decay: float) -> None:
        self._values, self._gradient = values, gradient
        self._betas, self._weight_decay = betas, weight_decay
        self._mean = torch.zeros_like(values)
        self._mean_square = torch.zeros_like(values)
        self._steps = torch.zeros((), dtype=torch.float32, device=values.device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step with learning rate ``rate``."""
        adamw(
            [self._values],
            [self._gradient],
            [self._mean],
            [self._mean_square],
            [],
            [self._steps],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=rate,
            weight_decay=self._weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device."""
        return self._mean.nbytes + self._mean_square.nbytes + self._steps.nbytes
