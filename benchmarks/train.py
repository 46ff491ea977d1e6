"""Training speed and memory of one block, against a plain PyTorch loop over it and the end-to-end model of full depth.

    python benchmarks/train.py --size tiny --threads 1 --steps 40 --json

The plain loop keeps one tensor per weight, as a script would: zero_grad, backward, clip_grad_norm_, AdamW; it is
compared with the learner on AdamW too. All take turns, so that a busy machine slows all. Times are processor seconds on
a CPU, wall seconds on a GPU. ``resident_bytes`` is what a process on the CPU grows by when it makes a learner and a few
steps, measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from blockswarm.lab.memory import measure_memory
from blockswarm.model.block import Block
from blockswarm.model.config import RECIPES, SIZES, ModelConfig, Recipe
from blockswarm.model.corpus import batches, open_corpus
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import BlockLearner, join, pick_device
from blockswarm.model.objective import block_loss
from blockswarm.model.partition import sigma_at

TURN = 5
"""Steps one loop makes before the other has its turn."""


def plain_loop(
    config: ModelConfig, recipe: Recipe, data: Iterator[np.ndarray], device: torch.device
) -> Callable[[], None]:
    """A step of the plain loop."""
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    block = Block(config, recipe.sigma_data, join(config, theta, table, device), number=0)
    block.weights = {name: torch.nn.Parameter(weight.clone()) for name, weight in block.weights.items()}
    optimiser = torch.optim.AdamW(block.weights.values(), lr=recipe.peak_rate(config.dim), betas=recipe.betas)
    random = np.random.default_rng(0)

    def step() -> None:
        tokens = torch.from_numpy(next(data)).to(device, torch.int64)
        x, y = tokens[:, :-1], tokens[:, 1:]
        sigma = torch.tensor([sigma_at(recipe, config.blocks, 0, u) for u in random.random(len(x))], device=device)
        z_zero = torch.arange(len(x), device=device) < recipe.z_zero_share * len(x)
        noise = torch.randn((*x.shape, config.dim), device=device)
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = block_loss(block, x, y, sigma.float(), noise, z_zero).weighted
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(block.weights.values(), recipe.grad_clip)
        optimiser.step()

    return step


def learner(config: ModelConfig, recipe: Recipe, data: Iterator[np.ndarray], device: torch.device) -> BlockLearner:
    """The learner of block 0."""
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    return BlockLearner(config, recipe, 0, theta, table, batches=data, seed=0, device=str(device))


def measure(steps: dict[str, Callable[[], object]], count: int, device: torch.device) -> dict[str, float]:
    """Median seconds of one step of each loop, taking turns."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    turns: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(1 + max(1, count // TURN)):
        for name, step in steps.items():
            start = clock()
            for _ in range(TURN):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                turns[name].append((clock() - start) / TURN)
    return {name: statistics.median(seconds) for name, seconds in turns.items()}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--recipe", choices=RECIPES, default="default")
    parser.add_argument("--data", default="docs", help="docs, a file or folder, or hf:<dataset>")
    parser.add_argument("--steps", type=int, default=40, help="steps of each loop (default 40)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    config, recipe, device = SIZES[args.size], RECIPES[args.recipe], pick_device(args.device)
    corpus = open_corpus(args.data, context=config.context)
    data = batches(corpus, 0, recipe.batch, config.context)
    whole = replace(config, blocks=1, layers=config.blocks * config.layers)
    adamw = replace(recipe, optimizer="adamw")
    loops = {
        "block": learner(config, recipe, data, device),
        "end_to_end": learner(whole, recipe, data, device),
        "adamw": learner(config, adamw, data, device),
    }
    steps: dict[str, Callable[[], object]] = {name: loop.step for name, loop in loops.items()}
    seconds = measure({**steps, "plain": plain_loop(config, adamw, data, device)}, args.steps, device)

    tokens = recipe.batch * config.context
    result = {
        "size": args.size,
        "recipe": args.recipe,
        "optimizer": recipe.optimizer,
        "device": str(device),
        "threads": args.threads,
        "ratio": round(seconds["plain"] / seconds["adamw"], 3),
        "plain_tokens_per_second": round(tokens / seconds["plain"]),
        "adamw_tokens_per_second": round(tokens / seconds["adamw"]),
    }
    for name, shape in (("block", config), ("end_to_end", whole)):
        result |= {
            f"{name}_tokens_per_second": round(tokens / seconds[name]),
            f"{name}_step_ms": round(seconds[name] * 1e3, 2),
            **{f"{name}_{what}_bytes": held for what, held in loops[name].memory().items()},
            f"{name}_resident_bytes": measure_memory(shape, recipe)["resident"],
        }
    for name, value in result.items():
        print(f"{name:28} {value}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
