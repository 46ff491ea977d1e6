"""Reading a trained stack in every way there is, over a whole text, byte by byte.

Names of readouts: ``parallel`` (all blocks, z = 0, mean log-probability), ``parallel:0+2`` (some blocks),
``alone:b`` (one block, z = 0), ``sweep`` (the last block of the Euler sweep), ``sweep:b`` (block b within it),
``sweep-mean`` (mean log-probability along it), ``sweep-corrected`` (its last block without the evidence of z),
``parallel+ngram`` (the parallel readout mixed with counts),
``parallel@s`` (sharpened: the mean log-probability times s, renormalised), ``level-max`` (z = 0, every block asked at
σ_max), ``true:b``, ``wrong:b``, ``noise:b`` (block b given the true noised target, another byte's, or pure noise).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockswarm.lab.errors import LabError
from blockswarm.lab.plan import Plan
from blockswarm.lab.training import Trained
from blockswarm.model.block import Block
from blockswarm.model.config import VOCABULARY
from blockswarm.model.layout import philox
from blockswarm.model.learner import join, pick_device
from blockswarm.model.mixing import VETO_FLOOR, sweep_noise
from blockswarm.model.mixing_fit import fit_mixture
from blockswarm.model.ngram import NgramModel
from blockswarm.model.partition import readout_sigma, sigma_at, sweep_sigmas
from blockswarm.model.readout import euler_step, sweep_scale
from blockswarm.model.scoring import cut_windows

Bytes = NDArray[np.uint8]
PerByte = dict[str, NDArray[np.float64]]
Progress = Callable[[int, int], None]

WINDOWS_AT_ONCE = 64
"""Windows computed together."""

SWEEP_SEED = 0
"""Of the noise a sweep starts from."""


class Stack:
    """The blocks of one trained model, or of several that are averaged, ready to be read.

    Parameters
    ----------
    models : list of (Plan, Trained)
        One model; or several, whose blocks are then numbered through and have no sweep in common.
    device : str
        As ``pick_device`` takes it.
    """

    def __init__(self, models: list[tuple[Plan, Trained]], device: str = "cpu") -> None:
        plan = models[0][0]
        self.model, self.recipe = plan.model, plan.recipe
        self.single = len(models) == 1
        self.device = pick_device(device)
        self.blocks: list[Block] = []
        self.levels: list[float] = []
        self.counts: NgramModel | None = None
        """The n-gram expert, where it is mixed in; see :meth:`mix_in`."""
        self.counts_weight = 0.0
        for plan, trained in models:
            for number, (theta, table) in enumerate(zip(trained.thetas, trained.embeddings, strict=True)):
                flat = join(plan.model, theta, table, self.device)
                self.blocks.append(Block(plan.model, plan.recipe.sigma_data, flat, number=number))
                self.levels.append(readout_sigma(plan.recipe, plan.model.blocks, number))

    def mix_in(self, counts: NgramModel, text: Bytes) -> None:
        """Take the counts in with the weight that predicts ``text`` (uint8 ``[m]``, not trained on) best."""
        rows, expert, targets = [], [], []
        with torch.inference_mode():
            for windows, starts, take_from in cut_windows(text[:-1], self.model.context, WINDOWS_AT_ONCE):
                x, y = self.tensors(text, windows, starts)
                blocks = _Passes(self, x, y, starts).parallel()
                rows.append(blocks[:, take_from:].reshape(-1, VOCABULARY).cpu().numpy())
                expert.append(counts.log_probs(windows)[:, take_from:].reshape(-1, VOCABULARY))
                targets.append(y[:, take_from:].flatten().cpu().numpy().astype(np.uint8))
        fit = fit_mixture(np.concatenate(rows), np.concatenate(expert), np.concatenate(targets))
        self.counts, self.counts_weight = counts, fit.weight

    def tensors(self, text: Bytes, windows: Bytes, starts: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Windows of ``text`` and the bytes that follow each of theirs, int64 ``[n, t]`` on the device."""
        y = text[starts[:, None] + np.arange(windows.shape[1]) + 1]
        x, following = (torch.from_numpy(part.astype(np.int64)).to(self.device) for part in (windows, y))
        return x, following

    def logits(self, block: int, x: Tensor, z: Tensor | None, sigma: float | Tensor) -> Tensor:
        """Logits ``[n, t, 256]`` of one block at one level."""
        levels = sigma if isinstance(sigma, Tensor) else torch.full((len(x),), sigma, device=self.device)
        chosen = self.blocks[block]
        return chosen.logits(chosen.denoise(x, z, levels), chosen.table()).float()


def measure(
    stack: Stack,
    text: Bytes,
    wanted: Iterable[str],
    *,
    at_once: int = WINDOWS_AT_ONCE,
    progress: Progress | None = None,
) -> PerByte:
    """ln p of every byte of ``text`` but the first under every readout of ``wanted``.

    Parameters
    ----------
    stack : Stack
        The model.
    text : uint8 ``[m]``
        What is predicted; windows as ``scoring.cut_windows`` cuts them.
    wanted : iterable of str
        Readouts by name, see the module's text.
    at_once : int
        Windows computed together.
    progress : callable, optional
        Gets bytes done and bytes in all.

    Returns
    -------
    dict of str to float64 ``[m − 1]``

    Raises
    ------
    LabError
        If there is no such readout or block.
    """
    names = list(dict.fromkeys(wanted))
    reading = Reading(stack, names)
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    done = 0
    with torch.inference_mode():
        for windows, starts, take_from in cut_windows(text[:-1], stack.model.context, at_once):
            x, y = stack.tensors(text, windows, starts)
            for name, rows in reading.rows(x, y, starts).items():
                parts[name].append(rows[:, take_from:].flatten().cpu().numpy())
            done += windows.shape[0] * (windows.shape[1] - take_from)
            if progress:
                progress(done, len(text) - 1)
    return {name: np.concatenate(rows).astype(np.float64) for name, rows in parts.items()}


class Reading:
    """Which forward passes a set of readouts needs, and how each is put together from them."""

    def __init__(self, stack: Stack, names: list[str]) -> None:
        self._stack, self._names = stack, names
        for name in names:
            self._check(name)

    def _check(self, name: str) -> None:
        kind, blocks, _ = parse(name)
        if kind == "parallel+ngram" and self._stack.counts is not None:
            return
        known = {"parallel", "alone", "sweep", "sweep-mean", "sweep-corrected", "level-max", "true", "wrong", "noise"}
        count = len(self._stack.blocks)
        apart = kind in ("alone", "parallel")
        if kind not in known or any(not 0 <= b < count for b in blocks) or not (apart or self._stack.single):
            raise LabError(f"no readout {name!r} in a model of {count} blocks")

    def rows(self, x: Tensor, y: Tensor, starts: NDArray[np.int64]) -> dict[str, Tensor]:
        """ln p of ``y`` ``[n, t]`` under every readout; each forward pass is made once."""
        passes = _Passes(self._stack, x, y, starts)
        return {name: self._row(passes, name, y) for name in self._names}

    def _row(self, passes: _Passes, name: str, y: Tensor) -> Tensor:
        kind, blocks, sharpness = parse(name)
        everyone = range(len(self._stack.blocks))
        if kind == "alone":
            log_probs = passes.alone(blocks[0])
        elif kind == "parallel":
            log_probs = passes.parallel(blocks, sharpness)
        elif kind == "parallel+ngram":
            log_probs = passes.with_counts()
        elif kind == "level-max":
            log_probs = sum_of([passes.at_top(b) for b in everyone]).div(len(everyone)).log_softmax(-1)
        elif kind == "sweep":
            log_probs = passes.sweep()[blocks[0] if blocks else -1]
        elif kind == "sweep-mean":
            log_probs = sum_of(passes.sweep()).div(len(everyone)).log_softmax(-1)
        elif kind == "sweep-corrected":
            log_probs = passes.corrected()
        else:
            log_probs = passes.given(blocks[0], kind)
        return log_probs.gather(2, y[..., None])[..., 0]


def parse(name: str) -> tuple[str, tuple[int, ...], float]:
    """Kind, blocks and sharpness of a readout's name.

    Raises
    ------
    LabError
        If the name cannot be read.
    """
    rest, _, sharpness = name.partition("@")
    kind, _, blocks = rest.partition(":")
    try:
        return kind, tuple(int(b) for b in blocks.split("+")) if blocks else (), float(sharpness or 1.0)
    except ValueError as error:
        raise LabError(f"readout {name!r} cannot be read: {error}") from error


def sum_of(tensors: list[Tensor]) -> Tensor:
    """The sum in the order given."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


class _Passes:
    """Forward passes over one batch of windows, each made when first asked for."""

    def __init__(self, stack: Stack, x: Tensor, y: Tensor, starts: NDArray[np.int64]) -> None:
        self._stack, self._x, self._y, self._starts = stack, x, y, starts
        self._alone: dict[int, Tensor] = {}
        self._sweep: list[Tensor] = []
        self._corrected: Tensor | None = None

    def alone(self, block: int) -> Tensor:
        if block not in self._alone:
            logits = self._stack.logits(block, self._x, None, self._stack.levels[block])
            self._alone[block] = logits.log_softmax(-1).clamp_(min=VETO_FLOOR)
        return self._alone[block]

    def parallel(self, blocks: tuple[int, ...] = (), sharpness: float = 1.0) -> Tensor:
        """The mean log-probability of some blocks, by default all, times ``sharpness``, renormalised."""
        chosen = blocks or tuple(range(len(self._stack.blocks)))
        return (sum_of([self.alone(b) for b in chosen]) * (sharpness / len(chosen))).log_softmax(-1)

    def with_counts(self) -> Tensor:
        stack = self._stack
        assert stack.counts is not None
        blocks = self.parallel()
        counts = torch.from_numpy(stack.counts.log_probs(self._x.cpu().numpy().astype(np.uint8))).to(stack.device)
        return torch.lerp(blocks, counts, stack.counts_weight).log_softmax(-1)

    def at_top(self, block: int) -> Tensor:
        return self._stack.logits(block, self._x, None, self._stack.recipe.sigma_max).log_softmax(-1)

    def sweep(self) -> list[Tensor]:
        if not self._sweep:
            stack = self._stack
            levels = sweep_sigmas(stack.recipe, stack.model.blocks)
            z = self._noise() * sweep_scale(levels[0])
            for block, sigma in enumerate(levels):
                logits = stack.logits(block, self._x, z, sigma)
                log_probs = logits.log_softmax(-1)
                self._sweep.append(log_probs)
                table = stack.blocks[block].table()
                if block == len(levels) - 1:
                    self._corrected = (logits - z @ table.T / sigma**2).log_softmax(-1)
                else:
                    z = euler_step(z, log_probs, table, sigma, levels[block + 1])
        return self._sweep

    def corrected(self) -> Tensor:
        self.sweep()
        assert self._corrected is not None
        return self._corrected

    def given(self, block: int, what: str) -> Tensor:
        """Given ``true``: e_y + σ·ε, ``wrong``: the target of another row, or ``noise``: σ·ε alone."""
        stack = self._stack
        sigma = self._levels(block)
        z = sigma[:, None, None] * self._noise()
        if what != "noise":
            y = self._y if what == "true" else self._y.flatten().roll(self._x.shape[1] // 2 + 1).view(self._y.shape)
            z = z + stack.blocks[block].table()[y]
        return stack.logits(block, self._x, z, sigma).log_softmax(-1)

    def _levels(self, block: int) -> Tensor:
        """A level for each window, spread over what the block trains on; the same for every kind of z."""
        stack = self._stack
        random = np.random.Generator(philox("levels", SWEEP_SEED, counter=int(self._starts[0])))
        draws = [sigma_at(stack.recipe, stack.model.blocks, block, float(u)) for u in random.random(len(self._x))]
        return torch.tensor(draws, dtype=torch.float32, device=stack.device)

    def _noise(self) -> Tensor:
        length, dim = self._x.shape[1], self._stack.model.dim
        rows = [sweep_noise(SWEEP_SEED, int(start), length, dim) for start in self._starts]
        return torch.from_numpy(np.stack(rows)).to(self._stack.device)


def subsets(blocks: int) -> list[str]:
    """Names of the parallel readout of every set of blocks with at least two and not all of them, small ones first."""
    sizes = range(2, blocks)
    return [f"parallel:{'+'.join(map(str, s))}" for k in sizes for s in itertools.combinations(range(blocks), k)]
