"""The block-local objective: weighted cross-entropy of the denoised target, for one block alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blockswarm.model.block import Block, Continued
from blockswarm.model.precondition import loss_weight


@dataclass(frozen=True)
class BlockLoss:
    """What ``block_loss`` computes; both are scalars on the block's device."""

    weighted: Tensor
    """mean over sequences of w(σ) · CE: what is minimised."""
    cross_entropy: Tensor
    """The same mean without weights, in nats per byte, detached: what is reported."""


def block_loss(
    block: Block,
    x: Tensor,
    y: Tensor,
    sigma: Tensor,
    noise: Tensor | None,
    z_zero: Tensor | None = None,
    weighting: Literal["edm", "unit"] = "edm",
) -> BlockLoss:
    """w(σ) · CE(logits, y) with z = e_y + σ·ε, averaged over the batch.

    Parameters
    ----------
    block : Block
        The block being trained.
    x, y : Tensor, int64 ``[n, t]``
        Bytes, and the bytes that follow each of them.
    sigma : Tensor, float32 ``[n]``
        Noise level of each sequence.
    noise : Tensor, float32 ``[n, t, dim]``, or None
        ε ~ N(0, I). None trains every sequence with z = 0.
    z_zero : Tensor, bool ``[n]``, optional
        Sequences that get z = 0 instead.
    weighting : {"edm", "unit"}
        w(σ) of the EDM, or one.

    Returns
    -------
    BlockLoss
    """
    table = block.table()
    z = None
    if noise is not None:
        z = F.embedding(y, table) + sigma[:, None, None] * noise
        if z_zero is not None:
            z = z.masked_fill(z_zero[:, None, None], 0.0)
    logits = block.logits(block.denoise(x, z, sigma), table)
    per_byte = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="none")
    per_sequence = per_byte.view(y.shape).mean(dim=1)
    # Both factors are [n]: a weight of shape [n, 1] would silently broadcast to [n, n].
    weighted = per_sequence if weighting == "unit" else loss_weight(sigma, block.sigma_data) * per_sequence
    weighted = weighted.mean()
    return BlockLoss(weighted, per_sequence.detach().mean())


@torch.inference_mode()
def readout_log_probs(block: Block, x: Tensor, sigma: float, windows: Continued | None = None) -> Tensor:
    """Normalised natural-log probabilities ``[n, t, 256]`` of the block alone with z = 0 at level ``sigma``.

    With ``windows``, ``x`` continues those; see ``Block.denoise``.
    """
    levels = torch.full((len(x),), sigma, device=x.device)
    return torch.log_softmax(block.logits(block.denoise(x, None, levels, windows), block.table()).float(), dim=-1)
