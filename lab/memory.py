"""What training takes of memory, measured in a process of its own: ``python -m blockswarm.lab.memory``.

The process reads a model and a recipe as JSON from standard input, makes a few training steps on random bytes and
prints its figures, so that nothing another training has left behind is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from blockswarm.lab.errors import LabError
from blockswarm.model.config import ModelConfig, Recipe

STEPS = 4
SECONDS = 300.0
"""Longest time for all of it."""


def measure_memory(model: ModelConfig, recipe: Recipe) -> dict[str, int]:
    """Bytes that training one block of ``model`` takes on the CPU with one thread.

    Parameters
    ----------
    model : ModelConfig
        A model of one block of full depth stands for end-to-end training.
    recipe : Recipe
        Decides what the optimizer keeps.

    Returns
    -------
    dict
        ``parameters``, ``gradients`` and ``optimizer`` as the learner holds them, and ``resident``: how much the
        process grew from before there was a learner to after a few steps, activations that are kept for the next step
        included.

    Raises
    ------
    LabError
        If the process fails.
    """
    asked = json.dumps({"model": model.to_mapping(), "recipe": recipe.to_mapping()})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "blockswarm.lab.memory"],
            input=asked,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise LabError(f"memory cannot be measured: {''.join(said)}") from error
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _random_batches(recipe: Recipe, context: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(0)
    while True:
        yield random.integers(256, size=(recipe.batch, context + 1), dtype=np.uint8)


def _main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    model, recipe = ModelConfig.from_mapping(asked["model"]), Recipe.from_mapping(asked["recipe"])

    from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
    from blockswarm.model.learner import BlockLearner

    def learner(shape: ModelConfig) -> BlockLearner:
        theta, table = block_layout(shape).genesis(0, 0), embedding_layout(shape).genesis(0, EMBEDDING)
        batches = _random_batches(recipe, shape.context)
        return BlockLearner(shape, recipe, 0, theta, table, batches=batches, seed=0, device="cpu", threads=1)

    # A tiny one first: kernels and thread pools that any training loads are not this one's memory.
    learner(ModelConfig(dim=16, blocks=1, layers=1, heads=2, context=16)).step()
    before = psutil.Process().memory_info().rss
    measured = learner(model)
    for _ in range(STEPS):
        measured.step()
    print(json.dumps({**measured.memory(), "resident": psutil.Process().memory_info().rss - before}))


if __name__ == "__main__":
    _main()
