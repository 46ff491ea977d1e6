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
from blockswarm.model.block import Block, Continued
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import join, pick_device
from blockswarm.model.objective import block_loss
from blockswarm.model.partition import readout_sigma


class RelayBlock(Block):
    """A block that takes in, and gives out, hidden states.

    Parameters
    ----------
    config, sigma_data, flat, number, train
        As ``Block`` takes them.
    relay_in : Tensor
        float32 ``[dim, dim]``, the projection of what comes in.
    """

    def __init__(
        self,
        config: ModelConfig,
        sigma_data: float,
        flat: Tensor,
        relay_in: Tensor,
        *,
        number: int,
        train: bool = False,
    ) -> None:
        super().__init__(config, sigma_data, flat, number=number, train=train)
        self.relay_in = relay_in.requires_grad_(train)
        self.incoming: Tensor | None = None
        """Hidden state of the block before, ``[n, t, dim]``; None for the first block."""
        self.hidden: Tensor | None = None
        """Own last hidden state, after ``denoise``."""

    def _read_bytes(self, x: Tensor, windows: Continued | None) -> Tensor:
        h = super()._read_bytes(x, windows)
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
                number=block.number,
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


class _Worker:
    """One relay block and its optimiser."""

    def __init__(self, plan: Plan, text: LabText, number: int, device: torch.device) -> None:
        model, recipe = plan.model, plan.recipe
        theta = block_layout(model).genesis(plan.seed, number)
        table = embedding_layout(model).genesis(plan.seed, EMBEDDING)
        relay_in = torch.zeros((model.dim, model.dim), device=device)
        self.plan, self.number, self.device = plan, number, device
        flat = join(model, theta, table, device)
        self.block = RelayBlock(model, recipe.sigma_data, flat, relay_in, number=number, train=True)
        assert self.block.grad is not None
        relay_in.grad = torch.zeros_like(relay_in)
        self._gradients = [self.block.grad, relay_in.grad.view(-1)]
        self._optimiser = FlatAdamW(
            [self.block.flat, relay_in.detach().view(-1)],
            self._gradients,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
        )
        self._batches = block_batches(plan, text, number)
        self._steps = 0

    def step(self, chain: list[RelayBlock], levels: list[float]) -> Tensor:
        """One step given the blocks before; the batch's cross-entropy."""
        recipe, block = self.plan.recipe, self.block
        tokens = torch.from_numpy(next(self._batches)).to(self.device, torch.int64)
        x, y = tokens[:, :-1], tokens[:, 1:]
        with torch.no_grad():
            for before in range(self.number):
                run_relay(chain, before, x, levels[before])
        block.incoming = chain[self.number - 1].hidden if self.number else None
        for gradient in self._gradients:
            gradient.zero_()
        sigma = torch.full((len(x),), levels[self.number], device=self.device)
        loss = block_loss(block, x, y, sigma, None, weighting="unit")
        torch.autograd.backward(loss.weighted)
        norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in self._gradients]).norm()
        for gradient in self._gradients:
            gradient.mul_((recipe.grad_clip / (norm + 1e-12)).clamp_(max=1.0))
        self._steps += 1
        self._optimiser.step(recipe.rate(self.plan.model.dim, self._steps * recipe.batch))
        return loss.cross_entropy


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
    model, size = plan.model, block_layout(plan.model).size
    workers = [_Worker(plan, text, number, pick_device(device)) for number in range(model.blocks)]
    chain = [worker.block for worker in workers]
    levels = [readout_sigma(plan.recipe, model.blocks, number) for number in range(model.blocks)]
    trained, done = Trained([], []), 0
    while done < plan.steps:
        steps = min(plan.averaging.every, plan.steps - done)
        losses = [worker.step(chain, levels) for worker in workers for _ in range(steps)]
        done += steps
        _share_table(chain, size)
        trained.curve.append((done, float(torch.stack(losses).mean())))
        if progress:
            progress(done * model.blocks, plan.work)
    for block in chain:
        flat = block.flat.detach().cpu().numpy()
        trained.thetas.append(np.concatenate([flat[:size], block.relay_in.detach().cpu().numpy().ravel()]))
        trained.embeddings.append(flat[size:].copy())
    trained.seconds = time.monotonic() - began
    return trained


@torch.no_grad()
def _share_table(blocks: list[RelayBlock], theta_size: int) -> None:
    tables = torch.stack([block.flat[theta_size:] for block in blocks])
    for block in blocks:
        block.flat[theta_size:] = tables.mean(0)
