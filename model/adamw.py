"""AdamW over flat vectors: torch's fused kernel through its functional form.

``torch.optim.AdamW`` would do the same, but making any ``torch.optim.Optimizer`` imports torch's compiler, and SymPy
with it: 75 MB and a second or two that a volunteer has no use for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

EPSILON = 1e-8


class FlatAdamW:
    """Decoupled weight decay Adam (Loshchilov & Hutter, arXiv:1711.05101) of float32 vectors, in place.

    Parameters
    ----------
    values, gradients : list of Tensor
        The vectors and their gradients, float32 ``[n]`` each, few and long; all are kept, not copied.
    betas : (float, float)
        Decay of the averages of the gradient and of its square.
    weight_decay : float
        Share of the values subtracted per step, times the rate.
    """

    def __init__(
        self, values: list[Tensor], gradients: list[Tensor], *, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._values, self._gradients = values, gradients
        self._betas, self._weight_decay = betas, weight_decay
        self._means = [torch.zeros_like(vector) for vector in values]
        self._mean_squares = [torch.zeros_like(vector) for vector in values]
        self._steps = [torch.zeros((), dtype=torch.float32, device=vector.device) for vector in values]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step with learning rate ``rate``."""
        adamw(
            self._values,
            self._gradients,
            self._means,
            self._mean_squares,
            [],
            self._steps,
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
        return sum(vector.nbytes for vector in (*self._means, *self._mean_squares, *self._steps))
