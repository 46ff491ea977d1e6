"""Asking one trained block: alone (parallel readout) or as one step of the noise sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockswarm.model.block import Block, Cache, Continued
from blockswarm.model.config import ModelConfig, Recipe
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import Float32
from blockswarm.model.learner import as_tensor, join, pick_device
from blockswarm.model.objective import readout_log_probs
from blockswarm.model.partition import readout_sigma, sweep_sigmas

_POSITIONS_AT_ONCE = 8192
"""Rows computed together; bounds the memory of a large request."""


def sweep_scale(sigma_max: float) -> float:
    """What unit noise is multiplied by to begin a sweep: √(1 + σ_max²), the spread of e + σ_max·ε with ‖e‖ = 1."""
    return float((1.0 + sigma_max**2) ** 0.5)


def euler_step(z: Tensor, log_probs: Tensor, table: Tensor, sigma: float, next_sigma: float) -> Tensor:
    """One step of the noise sweep: ``d = (z − p·E)/σ``, ``z + (σ_next − σ)·d``.

    Parameters
    ----------
    z : Tensor
        float32 ``[n, t, dim]`` at ``sigma``.
    log_probs, table : Tensor
        float32 ``[n, t, 256]``, what the block predicts there, and ``[256, dim]``, E.
    sigma, next_sigma : float
        Where z is, and where it goes.

    Returns
    -------
    Tensor
        float32 ``[n, t, dim]``.
    """
    return z + (next_sigma - sigma) * ((z - log_probs.exp() @ table) / sigma)


class BlockReader:
    """A fixed state of one block, for inference. Safe to use from several threads; each cache belongs to one reader."""

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        block: int,
        theta: Float32,
        embedding: Float32,
        device: str = "cpu",
    ) -> None:
        """Copy the state onto ``device``.

        Parameters
        ----------
        config, recipe
            The model and its noise levels.
        block : int
            Which block this is.
        theta, embedding : float32 vectors
            Its weights and the shared table.
        device : str
            Torch device, or ``auto``.

        Raises
        ------
        ModelError
            If an array does not fit the configuration or there is no such block or device.
        """
        self.config, self.recipe, self.block_index = config, recipe, block
        self._device = pick_device(device)
        self._sigma = readout_sigma(recipe, config.blocks, block)
        self._levels = sweep_sigmas(recipe, config.blocks)
        self._block = Block(config, recipe.sigma_data, join(config, theta, embedding, self._device), number=block)

    def log_probs(self, x: NDArray[np.uint8]) -> Float32:
        """The block's own predictions: z = 0 at ``readout_sigma``.

        Parameters
        ----------
        x : uint8 ``[n, t]``
            Windows, ``t`` at most the model's context.

        Returns
        -------
        ndarray, float32 ``[n, t, 256]``
            Natural log, normalised. Row i is the distribution of the byte that follows ``x[:, : i + 1]``.

        Raises
        ------
        ModelError
            If ``x`` is not uint8 of two axes, or longer than the context.
        """
        self._check(x)
        out = np.empty((*x.shape, 256), dtype=np.float32)
        at_once = max(1, _POSITIONS_AT_ONCE // max(1, x.shape[1]))
        for start in range(0, len(x), at_once):
            part = slice(start, start + at_once)
            out[part] = readout_log_probs(self._block, as_tensor(x[part], self._device), self._sigma).cpu().numpy()
        return out

    @torch.inference_mode()
    def sweep_step(self, x: NDArray[np.uint8], z: Float32) -> tuple[Float32, Float32 | None]:
        """This block's Euler step of the noise sweep (``d = (z − p·E)/σ``, ``z ← z + (σ_next − σ)·d``).

        Parameters
        ----------
        x : uint8 ``[n, t]``
            Windows of true context.
        z : float32 ``[n, t, dim]``
            For block 0 unit noise as ``mixing.sweep_noise`` gives it, which is scaled by √(1 + σ_max²) here; for the
            others what the block before returned.

        Returns
        -------
        (float32 ``[n, t, 256]``, float32 ``[n, t, dim]`` or None)
            Normalised log-probabilities at this block's level (the sweep's output, if this is the last block), and z at
            the next block's level; None from the last block.

        Raises
        ------
        ModelError
            If an array has the wrong type or shape.
        """
        self._check(x)
        if z.dtype != np.float32 or z.shape != (*x.shape, self.config.dim):
            raise ModelError(f"z is {z.dtype}{list(z.shape)}, expected float32{[*x.shape, self.config.dim]}")
        rows, stepped = self._step(as_tensor(x, self._device), as_tensor(z, self._device), None)
        return rows.cpu().numpy(), None if stepped is None else stepped.cpu().numpy()

    def open(self) -> Cache:
        """An empty cache for a window that is read piece by piece, with ``extend`` or with ``extend_sweep``."""
        return self._block.open()

    def extend(self, pieces: Sequence[tuple[Cache, NDArray[np.uint8]]]) -> list[Float32]:
        """Read on, several windows in one go.

        Parameters
        ----------
        pieces : sequence of (Cache, uint8 ``[m]``)
            Windows of this reader, each once, and the bytes that continue them, at least one.

        Returns
        -------
        list of float32 ``[m, 256]``
            The rows that ``log_probs`` would give for these bytes of the whole window, to float32 rounding.

        Raises
        ------
        ModelError
            If a window would grow beyond the context, or nothing is new.
        """
        x, windows = self._continued(pieces)
        rows = readout_log_probs(self._block, x, self._sigma, windows)[0].cpu().numpy()
        return _cut(rows, windows)

    @torch.inference_mode()
    def extend_sweep(
        self, pieces: Sequence[tuple[Cache, NDArray[np.uint8], Float32]]
    ) -> list[tuple[Float32, Float32 | None]]:
        """The same for ``sweep_step``: the third of a piece is z of its bytes, float32 ``[m, dim]``."""
        x, windows = self._continued([(cache, new) for cache, new, _ in pieces])
        z = np.concatenate([z for *_, z in pieces])
        if z.dtype != np.float32 or z.shape != (x.shape[1], self.config.dim):
            raise ModelError(f"z is {z.dtype}{list(z.shape)}, expected float32{[x.shape[1], self.config.dim]}")
        rows, stepped = self._step(x, as_tensor(z[None], self._device), windows)
        found = _cut(rows[0].cpu().numpy(), windows)
        if stepped is None:
            return [(part, None) for part in found]
        return list(zip(found, _cut(stepped[0].cpu().numpy(), windows), strict=True))

    def _step(self, x: Tensor, noisy: Tensor, windows: Continued | None) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and the next z of a step of the sweep, ``[n, t, …]``."""
        sigma = self._levels[self.block_index]
        if self.block_index == 0:
            noisy = noisy * sweep_scale(sigma)
        table = self._block.table()
        levels = torch.full((len(x),), sigma, device=self._device)
        zhat = self._block.denoise(x, noisy, levels, windows)
        logp = torch.log_softmax(self._block.logits(zhat, table), dim=-1)
        if self.block_index == self.config.blocks - 1:
            return logp, None
        return logp, euler_step(noisy, logp, table, sigma, self._levels[self.block_index + 1])

    def _continued(self, pieces: Sequence[tuple[Cache, NDArray[np.uint8]]]) -> tuple[Tensor, Continued]:
        if not pieces or any(new.dtype != np.uint8 or new.ndim != 1 or not len(new) for _, new in pieces):
            raise ModelError("a window is continued by at least one byte, as uint8[m]")
        windows = Continued([cache for cache, _ in pieces], [len(new) for _, new in pieces])
        return as_tensor(np.concatenate([new for _, new in pieces])[None], self._device), windows

    def _check(self, x: NDArray[np.uint8]) -> None:
        if x.dtype != np.uint8 or x.ndim != 2:
            raise ModelError(f"windows are {x.dtype}{list(x.shape)}, expected uint8[n, t]")
        if x.shape[1] > self.config.context:
            raise ModelError(f"window of {x.shape[1]} bytes is longer than the model's context {self.config.context}")


def _cut(rows: Float32, windows: Continued) -> list[Float32]:
    """The rows of each window."""
    return np.split(rows, np.cumsum(windows.sizes)[:-1])
