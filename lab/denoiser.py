"""A direct denoiser: the block is trained on the squared error of the denoised embedding instead of cross-entropy.

The first row of the paper's table T2. Its table must not be learned, or all rows would become one; what scale turns
its similarities into log-probabilities is learned beside it, by cross-entropy, since nothing in its own loss says.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blockswarm.model.learner import BlockLearner
from blockswarm.model.objective import BlockLoss
from blockswarm.model.precondition import loss_weight


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
        # Of the cross-entropy nothing but log_scale gets a gradient: ẑ and the table are cut off.
        entropy = F.cross_entropy(block.logits(zhat.detach(), table).flatten(0, 1), y.flatten())
        return BlockLoss(weighted + entropy, entropy.detach())
