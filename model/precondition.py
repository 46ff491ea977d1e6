"""EDM preconditioning (Karras et al. 2022, table 1): how a block's raw output F becomes a denoised embedding.

``ẑ = c_out · F(x, c_in · z, c_noise) + c_skip · z``. Each function takes σ as a float or a tensor and returns
the same kind.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from torch import Tensor


@overload
def c_skip(sigma: float, sigma_data: float) -> float: ...
@overload
def c_skip(sigma: Tensor, sigma_data: float) -> Tensor: ...
def c_skip(sigma: float | Tensor, sigma_data: float) -> float | Tensor:
    """σd² / (σ² + σd²): how much of z is kept."""
    return sigma_data**2 / (sigma**2 + sigma_data**2)


@overload
def c_out(sigma: float, sigma_data: float) -> float: ...
@overload
def c_out(sigma: Tensor, sigma_data: float) -> Tensor: ...
def c_out(sigma: float | Tensor, sigma_data: float) -> float | Tensor:
    """σ·σd / √(σ² + σd²): the scale of F's part."""
    return sigma * sigma_data / (sigma**2 + sigma_data**2) ** 0.5


@overload
def c_in(sigma: float, sigma_data: float) -> float: ...
@overload
def c_in(sigma: Tensor, sigma_data: float) -> Tensor: ...
def c_in(sigma: float | Tensor, sigma_data: float) -> float | Tensor:
    """1 / √(σ² + σd²): brings z to about unit variance before it enters F."""
    return (sigma**2 + sigma_data**2) ** -0.5


@overload
def c_noise(sigma: float) -> float: ...
@overload
def c_noise(sigma: Tensor) -> Tensor: ...
def c_noise(sigma: float | Tensor) -> float | Tensor:
    """ln(σ) / 4: how F is told the noise level."""
    return math.log(sigma) / 4 if isinstance(sigma, int | float) else sigma.log() / 4


@overload
def loss_weight(sigma: float, sigma_data: float) -> float: ...
@overload
def loss_weight(sigma: Tensor, sigma_data: float) -> Tensor: ...
def loss_weight(sigma: float | Tensor, sigma_data: float) -> float | Tensor:
    """w(σ) = (σ² + σd²) / (σ·σd)²."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2
