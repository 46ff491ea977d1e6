"""Relay (METHOD §3.8): a block also receives the detached last hidden state of the block before.

    h = bytes(x_t) + …  +  relay_in · norm(hidden of block b − 1)

Every block still has its own cross-entropy and no gradient crosses between blocks, but a worker now needs the blocks
before its own, forward only. The projection is kept behind the block's own weights: ``[θ | relay_in]``.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blockswarm.lab.measuring import Stack
from blockswarm.lab.plan import Plan
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Progress, Trained, block_batches
from blockswarm.model.adamw import FlatAdamW
from blockswarm.model.block import Block, Cache
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import join, pick_device
from blockswarm.model.objective import block_loss
from blockswarm.model.partition import readout_sigma


class RelayBlock(Block):
    """A block that takes in, and gives out, hidden states.

    Parameters
    ----------
    config, sigma_data, flat, train
        As ``Block`` takes them.
    relay_in : Tensor
        float32 ``[dim, dim]``, the projection of what comes in.
    """

    def __init__(
        self, config: ModelConfig, sigma_data: float, flat: Tensor, relay_in: Tensor, *, train: bool = False
    ) -> None:
        super().__init__(config, sigma_data, flat, train=train)
        self.relay_in = relay_in.requires_grad_(train)
        self.incoming: Tensor | None = None
        """Hidden state of the block before, ``[n, t, dim]``; None for the first block."""
        self.hidden: Tensor | None = None
        """Own last hidden state, after ``denoise``."""

    def _read_bytes(self, x: Tensor, cache: Cache | None) -> Tensor:
        h = super()._read_bytes(x, cache)
        if self.incoming is None:
            return h
        return h + F.linear(F.layer_norm(self.incoming, self.incoming.shape[-1:]), self.relay_in)

    def _read_out(self, h: Tensor) -> Tensor:
        self.hidden = h.detach()
        return super()._read_out(h)


class RelayStack(Stack):
    """A trained relay, read block by block: each pass runs the blocks before it first."""

    def __init__(self, models: list[tuple[Plan, Trained]], device: str = "cpu") -> None:
        plan, trained = models[0]
        size = block_layout(plan.model).size
        plain = Trained([theta[:size] for theta in trained.thetas], trained.embeddings)
        super().__init__([(plan, plain)], device)
        shape = (plan.model.dim, plan.model.dim)
        self._relays = [
            RelayBlock(
                plan.model,
                plan.recipe.sigma_data,
                block.flat,
                torch.from_numpy(theta[size:].reshape(shape).copy()).to(self.device),
            )
            for block, theta in zip(self.blocks, trained.thetas, strict=True)
        ]

    def logits(self, block: int, x: Tensor, z: Tensor | None, sigma: float | Tensor) -> Tensor:
        """Logits of one block at the end of the chain that leads to it; z must be None."""
        assert z is None and isinstance(sigma, float), "a relay is read with z = 0"
        for number in range(block + 1):
            run_relay(self._relays, number, x, self.levels[number])
        last = self._relays[block]
        return last.logits(run_relay(self._relays, block, x, sigma), last.table())


def run_relay(blocks: list[RelayBlock], number: int, x: Tensor, sigma: float) -> Tensor:
    """ẑ of block ``number`` given what the block before it has left in ``hidden``."""
    block = blocks[number]
    block.incoming = blocks[number - 1].hidden if number else None
    return block.denoise(x, None, torch.full((len(x),), sigma, device=x.device))


def train_relay(plan: Plan, text: LabText, *, device: str = "cpu", progress: Progress | None = None) -> Trained:
    """Train a relay: within each round every block makes its steps on its own batches, in order.

    Parameters
    ----------
    plan : Plan
        Its recipe's noise is not used: every block is trained at z = 0 with plain cross-entropy.
    text, device, progress
        As ``train`` takes them.
    """
    began = time.monotonic()
    where = pick_device(device)
    blocks, optimisers, data = [], [], []
    layout, model, recipe = block_layout(plan.model), plan.model, plan.recipe
    for number in range(model.blocks):
        theta, table = layout.genesis(plan.seed, number), embedding_layout(model).genesis(plan.seed, EMBEDDING)
        relay_in = torch.zeros((model.dim, model.dim), device=where)
        block = RelayBlock(model, recipe.sigma_data, join(model, theta, table, where), relay_in, train=True)
        relay_in.grad = torch.zeros_like(relay_in)
        assert block.grad is not None
        vectors, gradients = [block.flat, relay_in.detach().view(-1)], [block.grad, relay_in.grad.view(-1)]
        optimisers.append(FlatAdamW(vectors, gradients, betas=recipe.betas, weight_decay=recipe.weight_decay))
        blocks.append(block)
        data.append(block_batches(plan, text, number))
    levels = [readout_sigma(recipe, model.blocks, number) for number in range(model.blocks)]
    trained, done = Trained([], []), 0
    while done < plan.steps:
        steps, losses = min(plan.averaging.every, plan.steps - done), []
        for number in range(model.blocks):
            for step in range(done, done + steps):
                tokens = torch.from_numpy(next(data[number])).to(where, torch.int64)
                x, y = tokens[:, :-1], tokens[:, 1:]
                with torch.no_grad():
                    for before in range(number):
                        run_relay(blocks, before, x, levels[before])
                block = blocks[number]
                block.incoming = blocks[number - 1].hidden if number else None
                gradients = [block.grad, block.relay_in.grad]
                for gradient in gradients:
                    assert gradient is not None
                    gradient.zero_()
                sigma = torch.full((len(x),), levels[number], device=where)
                loss = block_loss(block, x, y, sigma, None, weighting="unit")
                torch.autograd.backward(loss.weighted)
                norm = torch.stack([torch.linalg.vector_norm(g) for g in gradients if g is not None]).norm()
                for gradient in gradients:
                    assert gradient is not None
                    gradient.mul_((recipe.grad_clip / (norm + 1e-12)).clamp_(max=1.0))
                optimisers[number].step(recipe.rate(model.dim, (step + 1) * recipe.batch))
                losses.append(loss.cross_entropy)
        done += steps
        _share_table(blocks, layout.size)
        trained.curve.append((done, float(torch.stack(losses).mean())))
        if progress:
            progress(done * model.blocks, plan.work)
    for block in blocks:
        flat = block.flat.detach().cpu().numpy()
        relay_in = block.relay_in.detach().cpu().numpy().ravel()
        trained.thetas.append(np.concatenate([flat[: layout.size], relay_in]))
        trained.embeddings.append(flat[layout.size :].copy())
    trained.seconds = time.monotonic() - began
    return trained


@torch.no_grad()
def _share_table(blocks: list[RelayBlock], theta_size: int) -> None:
    tables = torch.stack([block.flat[theta_size:] for block in blocks])
    for block in blocks:
        block.flat[theta_size:] = tables.mean(0)
