"""What is trained, as data: everything that decides a training's outcome, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from blockswarm.model.config import ModelConfig, Recipe
from blockswarm.swarm.codec import Compression

FORMAT = 3
"""Counts up when the same plan would no longer give the same weights."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How the workers of a block become one between two rounds."""

    every: int = 10
    """Local steps of a round."""
    replicas: int = 1
    """Workers of each block, each with its own batches and noise."""
    compression: Compression = "none"
    """Encoding of updates and of their mean, see ``blockswarm.swarm.codec``."""
    momentum: float = 0.0
    """Of the outer Nesterov step on the mean update; with ``rate`` 1 and momentum 0 there is none."""
    rate: float = 1.0
    """Of the outer step."""
    participation: float = 1.0
    """Chance of an update to be accepted; one that is not is carried into the next round."""
    fresh_optimizer: bool = False
    """Whether the optimizer forgets its averages at every round."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training of a whole model, block by block, in one process."""

    model: ModelConfig
    """The shape. A plain end-to-end model is a model of one block that always gets z = 0."""
    recipe: Recipe
    """The objective and the optimiser."""
    steps: int
    """Optimiser steps of every worker."""
    seed: int
    """Of the first weights, the batches and the noise."""
    averaging: Averaging = Averaging()
    """What happens between rounds."""
    embedding: Literal["shared", "own", "frozen"] = "shared"
    """Averaged over all workers of all blocks, each block's own, or the random one everyone starts with."""
    same_batches: bool = False
    """Whether all blocks see the same sequences in the same order."""
    ema: float = 0.0
    """Decay per step of an average of the weights that is read out instead of the weights; 0 = none."""
    objective: Literal["cross-entropy", "embedding-mse"] = "cross-entropy"
    """The block's own, or the squared error of the denoised embedding (a direct denoiser)."""
    relay: bool = False
    """Whether a block also receives the last hidden state of the block before (METHOD §3.8)."""
    watch: int = 0
    """Rounds between two looks at the parallel readout's cross-entropy; 0 = never."""

    @property
    def tokens(self) -> int:
        """Bytes every worker is trained on."""
        return self.steps * self.recipe.batch * self.model.context

    @property
    def work(self) -> int:
        """Steps of all workers together, for a progress bar."""
        return self.steps * self.model.blocks * self.averaging.replicas

    def key(self, text_digest: bytes) -> str:
        """A name for the outcome: hex digest of the plan, the text and the format."""
        content = json.dumps([FORMAT, asdict(self), text_digest.hex()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def scheduled(recipe: Recipe, steps: int) -> Recipe:
    """``recipe`` with a cosine decay that ends after ``steps`` steps."""
    return replace(recipe, train_samples=steps * recipe.batch, settle_samples=0)


def blocks_plan(model: ModelConfig, recipe: Recipe, steps: int, seed: int, **changes: Any) -> Plan:
    """A stack of blocks, its rate ending with the training."""
    return Plan(model=model, recipe=scheduled(recipe, steps), steps=steps, seed=seed, **changes)


def plain_plan(model: ModelConfig, depth: int, recipe: Recipe, steps: int, seed: int, **changes: Any) -> Plan:
    """A plain next-byte model of ``depth`` layers trained end to end: one block, z = 0 always, no noise weight.

    ``recipe`` gives the optimiser, its rates and (by σ_data) the scale of the logits; of its objective nothing is left
    but the cross-entropy.
    """
    plain = replace(recipe, z_zero_share=1.0, weighting="unit", overlap=0.0)
    shape = replace(model, blocks=1, layers=depth)
    return Plan(model=shape, recipe=scheduled(plain, steps), steps=steps, seed=seed, **changes)
