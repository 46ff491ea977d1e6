"""A direct denoiser: the block is trained on the squared error of the denoised embedding instead of cross-entropy.

The first row of the paper's table T2. Its table must not be learned, or all rows would become one; what scale turns
its distances into log-probabilities is fitted on each batch, since nothing in its loss says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blockswarm.model.learner import BlockLearner
from blockswarm.model.objective import BlockLoss
from blockswarm.model.precondition import loss_weight

FITTING_RATE = 0.02
"""Rate of the logarithm of that scale."""


class DenoiserLearner(BlockLearner):
    """``BlockLearner`` with the loss w(σ)·‖ẑ − e_y‖²."""

    def _loss(self, x: Tensor, y: Tensor, sigma: Tensor, noise: Tensor | None, z_zero: Tensor | None) -> BlockLoss:
        block = self._block
        table = block.table().detach()
        target = F.embedding(y, table)
        z = None if noise is None else target + sigma[:, None, None] * noise
        zhat = block.denoise(x, z, sigma)
        error = (zhat - target).square().sum(-1).mean(1)
        weighted = (loss_weight(sigma, block.sigma_data) * error).mean()
        logits = block.logits(zhat.detach(), table)
        entropy = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        # log_scale moves alone, by the sign of its own gradient: the squared error does not reach it.
        (slope,) = torch.autograd.grad(entropy, block.weights["log_scale"])
        with torch.no_grad():
            block.weights["log_scale"].sub_(FITTING_RATE * slope.sign())
        return BlockLoss(weighted, entropy.detach())
