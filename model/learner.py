"""Training one block: batches in, a better flat state out. Knows nothing of the swarm around it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockswarm.model.adamw import FlatAdamW
from blockswarm.model.block import Block
from blockswarm.model.config import ModelConfig, Recipe
from blockswarm.model.errors import OptionError
from blockswarm.model.layout import Entry, Float32, block_layout, check_vector, embedding_layout, layer_matrices, philox
from blockswarm.model.muon import MatrixMomentum
from blockswarm.model.objective import BlockLoss, block_loss, readout_log_probs
from blockswarm.model.partition import readout_sigma, sigma_at
from blockswarm.naming import option

Precision = Literal["auto", "fp32", "bf16"]


class BlockLearner:
    """A block, its copy of the embedding, and AdamW over both as one flat vector.

    Not thread-safe: one thread owns a learner and calls its methods one after another.
    """

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        block: int,
        theta: Float32,
        embedding: Float32,
        *,
        batches: Iterator[NDArray[np.uint8]],
        seed: int,
        device: str = "auto",
        threads: int | None = None,
        precision: Precision = "auto",
        compiled: bool = False,
    ) -> None:
        """Copy a state onto the device and make ready to train it.

        Parameters
        ----------
        config, recipe
            The model and how it learns.
        block : int
            Which block this is; decides the noise levels it trains on.
        theta : float32 ``[block_layout(config).size]``
            The block's own weights.
        embedding : float32 ``[embedding_layout(config).size]``
            The shared table.
        batches : iterator of uint8 ``[batch, context + 1]``
            Training sequences; see ``corpus.batches``.
        seed : int
            Of this volunteer's noise; two replicas must differ in it.
        device : str
            ``auto`` takes a CUDA device if there is one, else the CPU.
        threads : int, optional
            CPU threads for the whole process; None leaves torch's setting.
        precision : {"auto", "fp32", "bf16"}
            Of matrix products; weights and sums stay float32. ``auto`` is bf16 on a GPU.
        compiled : bool
            Let ``torch.compile`` fuse the objective: half a minute at the first step, then faster steps.

        Raises
        ------
        ModelError
            If an array does not fit the configuration or there is no such block or device.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        keep_freed_memory()
        self.config, self.recipe, self.block_index = config, recipe, block
        self.device = pick_device(device)
        self._bf16 = precision == "bf16" or (precision == "auto" and self.device.type == "cuda")
        self._block_loss = torch.compile(block_loss) if compiled else block_loss
        self._readout_sigma = readout_sigma(recipe, config.blocks, block)
        flat = join(config, theta, embedding, self.device)
        self._theta_size = theta.size
        self._block = Block(config, recipe.sigma_data, flat, number=block, train=True)
        assert self._block.grad is not None
        self._gradient = self._block.grad  # one vector, of which the gradient of every weight is a view
        self._batches = batches
        self._random = np.random.Generator(philox("learner", seed))
        self._generator = torch.Generator(self.device).manual_seed(int(self._random.integers(1 << 62)))
        self._certified = 0
        self._since_certified = 0
        self.reset_optimizer(0)

    @property
    def samples_per_step(self) -> int:
        """Training sequences in one optimiser step."""
        return self.recipe.batch

    def step(self) -> Tensor:
        """One optimiser step on the next batch.

        Returns
        -------
        Tensor
            Cross-entropy of the batch in nats per byte before the step, unweighted: a scalar on the device, which
            ``float()`` waits for.
        """
        recipe = self.recipe
        tokens = torch.from_numpy(next(self._batches)).to(self.device, torch.int64)
        sigma, z_zero = self._draw_levels(len(tokens))
        x, y = tokens[:, :-1], tokens[:, 1:]
        noise = None
        if not z_zero.all():
            noise = torch.randn((*x.shape, self.config.dim), generator=self._generator, device=self.device)
        gradient = self._gradient
        gradient.zero_()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            loss = self._loss(
                x,
                y,
                torch.from_numpy(sigma).to(self.device),
                noise,
                torch.from_numpy(z_zero).to(self.device) if z_zero.any() else None,
            )
        torch.autograd.backward(loss.weighted)
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_((recipe.grad_clip / (norm + 1e-12)).clamp_(max=1.0))
        share = self._rate_share()
        self._optimizer.step(recipe.peak_rate(self.config.dim) * share)
        if self._matrices is not None:
            self._matrices.step(recipe.muon_rate * share)
        self._since_certified += len(tokens)
        self._steps += 1
        return loss.cross_entropy

    @property
    def learning_rate(self) -> float:
        """AdamW's rate in the next step: the recipe's schedule, and the ramp after ``reset_optimizer``."""
        return self.recipe.peak_rate(self.config.dim) * self._rate_share()

    def _rate_share(self) -> float:
        samples = self._certified + self._since_certified + self.samples_per_step
        ramp: float = min(1.0, (self._steps + 1) / (self._ramp + 1))
        return self.recipe.rate_share(samples) * ramp

    def set_certified(self, samples: int) -> None:
        """Tell the schedule how many samples are certified for this block; local steps count on from there."""
        self._certified = samples
        self._since_certified = 0

    def reset_optimizer(self, warmup_steps: int) -> None:
        """Forget AdamW's averages (after taking over a foreign state) and ramp the rate up over ``warmup_steps``."""
        self._steps = 0
        self._ramp = warmup_steps
        recipe, flat = self.recipe, self._block.flat
        muon = recipe.optimizer == "muon"
        entries = layer_matrices(self.config) if muon else []
        self._matrices = _muon(self._block.flat, self._gradient, entries) if entries else None
        rest = _without(entries, flat.numel())
        self._optimizer = FlatAdamW(
            [flat[part] for part in rest],
            [self._gradient[part] for part in rest],
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
        )

    def memory(self) -> dict[str, int]:
        """Bytes on the device: ``parameters``, ``gradients``, ``optimizer``."""
        return {
            "parameters": self._block.flat.nbytes,
            "gradients": self._gradient.nbytes,
            "optimizer": self._optimizer.nbytes + (self._matrices.nbytes if self._matrices else 0),
        }

    def read(self) -> tuple[Float32, Float32]:
        """Copies of the current θ and embedding, float32 vectors."""
        flat = self._block.flat.detach().cpu().numpy()
        return flat[: self._theta_size].copy(), flat[self._theta_size :].copy()

    @torch.no_grad()
    def add(self, theta_correction: Float32 | None, embedding_correction: Float32 | None) -> None:
        """Add corrections to the weights in place, keeping AdamW's averages; None leaves that part alone."""
        for part, correction in zip(self._parts(), (theta_correction, embedding_correction), strict=True):
            if correction is not None:
                check_vector(correction, part.numel(), "correction")
                part.add_(as_tensor(correction, self.device))

    @torch.no_grad()
    def load(self, theta: Float32 | None, embedding: Float32 | None) -> None:
        """Replace the weights in place, keeping AdamW's averages; None leaves that part alone."""
        for part, values in zip(self._parts(), (theta, embedding), strict=True):
            if values is not None:
                check_vector(values, part.numel(), "state")
                part.copy_(as_tensor(values, self.device))

    def evaluate(self, windows: NDArray[np.uint8]) -> float:
        """Cross-entropy, nats per byte, of this block alone (z = 0) over ``windows`` uint8 ``[n, context + 1]``."""
        total = 0.0
        for start in range(0, len(windows), 32):
            tokens = as_tensor(windows[start : start + 32], self.device).long()
            logp = readout_log_probs(self._block, tokens[:, :-1], self._readout_sigma)
            total -= float(logp.gather(2, tokens[:, 1:, None]).double().sum())
        return total / windows[:, 1:].size

    def _loss(self, x: Tensor, y: Tensor, sigma: Tensor, noise: Tensor | None, z_zero: Tensor | None) -> BlockLoss:
        """The objective on one batch; arguments as ``block_loss`` takes them."""
        return self._block_loss(self._block, x, y, sigma, noise, z_zero, self.recipe.weighting)

    def _parts(self) -> tuple[Tensor, Tensor]:
        flat = self._block.flat
        return flat[: self._theta_size], flat[self._theta_size :]

    def _draw_levels(self, n: int) -> tuple[Float32, NDArray[np.bool_]]:
        """Noise levels float32 ``[n]`` and which sequences get z = 0, bool ``[n]``."""
        recipe, blocks = self.recipe, self.config.blocks
        # Sequences are independent, so the first ones may be those with z = 0; rounding at random keeps the share.
        z_zero = np.arange(n) < int(recipe.z_zero_share * n + self._random.random())
        draws = [sigma_at(recipe, blocks, self.block_index, float(u)) for u in self._random.random(n)]
        return np.where(z_zero, self._readout_sigma, draws).astype(np.float32), z_zero


def _muon(flat: Tensor, gradient: Tensor, entries: list[Entry]) -> MatrixMomentum:
    """Muon over the matrices at ``entries``; attention's three projections are three matrices."""
    values: list[Tensor] = []
    gradients: list[Tensor] = []
    for entry in entries:
        part = slice(entry.offset, entry.offset + entry.size)
        pieces = 3 if entry.name.endswith(".qkv") else 1
        values += flat[part].view(entry.shape).chunk(pieces)
        gradients += gradient[part].view(entry.shape).chunk(pieces)
    return MatrixMomentum(values, gradients)


def _without(entries: list[Entry], size: int) -> list[slice]:
    """The stretches of a vector of ``size`` values between ``entries``."""
    ends = [0, *(entry.offset + entry.size for entry in entries)]
    starts = [*(entry.offset for entry in entries), size]
    return [slice(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def keep_freed_memory() -> None:
    """Let glibc keep the memory of one step for the next instead of returning it to the kernel each time.

    Activations are a few megabytes each. With the default thresholds every step gives them back and faults them in
    again: a tenth of the time of a ``tiny`` step. At most 256 MiB stay with the process. Without glibc, does nothing.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(trim_threshold, 256 << 20)
            mallopt(mmap_threshold, 32 << 20)


def pick_device(name: str) -> torch.device:
    """The torch device called ``name``; ``auto`` is CUDA where there is one, else the CPU.

    Raises
    ------
    OptionError
        If there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        instead = option("device", "cpu")
        raise OptionError(f"{option('device')} {name!r} cannot be used: {reason}; try {instead}") from error
    return device


def as_tensor(array: NDArray[np.float32] | NDArray[np.uint8], device: torch.device) -> Tensor:
    """``array`` as a tensor; memory is shared only with a writable array on the CPU."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


def join(config: ModelConfig, theta: Float32, embedding: Float32, device: torch.device) -> Tensor:
    """A new flat tensor ``[θ | embedding]`` on ``device`` from the two vectors, whose sizes are checked."""
    check_vector(theta, block_layout(config).size, "block state")
    check_vector(embedding, embedding_layout(config).size, "embedding state")
    return torch.from_numpy(np.concatenate([theta, embedding])).to(device)
