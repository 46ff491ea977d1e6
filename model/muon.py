"""Muon: momentum whose matrices are made orthogonal before they are added to the weights.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon). Only the matrices inside the layers are moved by it; tables,
norms, projections to and from the interface and scalars stay with AdamW, which runs over the rest of the flat vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
"""Newton–Schulz steps; singular values end between about 0.7 and 1.2, which is near enough to one."""
QUINTIC = (3.4445, -4.775, 2.0315)
"""Coefficients of the iteration x ← a·x + b·x³ + c·x⁵ on singular values (from the source above)."""


class MatrixMomentum:
    """Nesterov momentum of a set of matrices, orthogonalised, in place.

    Parameters
    ----------
    values, gradients : list of Tensor, float32 ``[rows, columns]``
        Views of the weights and of their gradients; kept, not copied. Tall stacks such as the three projections of
        attention should be given apart.
    """

    def __init__(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        shapes = sorted({tuple(value.shape) for value in values})
        self._groups = []
        for shape in shapes:
            chosen = [i for i, value in enumerate(values) if tuple(value.shape) == shape]
            held = torch.zeros((len(chosen), *shape), device=values[0].device)
            self._groups.append(([values[i] for i in chosen], [gradients[i] for i in chosen], held))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix by ``rate · √max(1, rows / columns)`` times its orthogonalised momentum."""
        for values, gradients, held in self._groups:
            fresh = torch.stack(gradients)
            held.lerp_(fresh, 1.0 - MOMENTUM)
            update = orthogonalise(torch.lerp(fresh, held, MOMENTUM))
            scale = rate * max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for value, change in zip(values, update.unbind(), strict=True):
                value.sub_(change, alpha=scale)

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device: one number a weight, AdamW keeps two."""
        return sum(held.nbytes for _, _, held in self._groups)


def orthogonalise(matrices: Tensor) -> Tensor:
    """About ``U·Vᵀ`` of the singular value decomposition ``U·S·Vᵀ`` of each matrix.

    Parameters
    ----------
    matrices : Tensor
        float32 ``[n, rows, columns]``; bfloat16 inside on a GPU.

    Returns
    -------
    Tensor
        float32 ``[n, rows, columns]``.
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    whole: Tensor = x.mT if tall else x
    return whole.float()
