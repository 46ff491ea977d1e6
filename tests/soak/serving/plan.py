"""Which texts are written how: the cells of the matrix, from a seed. Pure.

Every prompt meets every temperature with every drafter, and each of these with another way of disturbing the holders,
so that a prompt meets every disturbance at every temperature too. Five prompts on, the two have met in every pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TEMPERATURES = (0.0, 0.7, 1.0)

DRAFTERS = (("blocks", "none"), ("blocks", "ngram"), ("blocks", "block"), ("blocks", "file"), ("counts", "counts"))
"""World and drafter. ``file`` is an n-gram file of the text itself, so that long drafts stand; ``none`` guesses
nothing. In the world ``counts`` the run's n-gram counts are in the target, and whoever drafts has them."""

DISTURBANCES = ("calm", "recompute", "killed", "swapped", "commits")
"""``recompute``: holders keep nothing of a text. ``killed``: a holder dies under a request, its answer unsent.
``swapped``: both holders of a block, one after the other, are ended and come back with nothing kept. ``commits``: all
holders commit new rounds meanwhile, so that the text's states are old ones."""

LENGTHS = range(33)
"""Bytes of a draft; 0 stands for as many as pay, as clients do."""

STEPS = {"none": 44, "ngram": 30, "block": 12, "counts": 12, "file": 5}
"""A holder is killed under its first, second, … request of a text, up to this one: about as many as a text has."""

MOST_PROMPT = 96
"""Bytes of a prompt: three contexts."""

ODD_PROMPTS = (
    *(b"", b"\n", b"x" * 31, b"x" * 32, b"x" * 33),
    *(bytes(range(216, 256)), bytes(64), "Bäume, 数百本の木".encode()),
)
"""An empty one, windows that are just full, and bytes that are no text."""


@dataclass(frozen=True)
class Cell:
    """One text."""

    number: int
    prompt: int
    """Index among the prompts."""
    temperature: float
    world: str
    draft: str
    length: int
    readout: str
    disturbance: str
    block: int
    """Whose holders are disturbed."""
    step: int
    """When: at this request of the text to that block, 1 or more."""
    seed: int
    """Of the text."""


def plan(prompts: int, seed: int, *, blocks: int = 2) -> list[Cell]:
    """The cells for so many prompts, in an order that needs each world once."""
    rng = np.random.default_rng(seed)
    cells = []
    for prompt in range(prompts):
        for number, temperature in enumerate(TEMPERATURES):
            text_seed = int(rng.integers(2**32))
            for turn, (world, draft) in enumerate(DRAFTERS):
                count = len(cells)
                cells.append(
                    Cell(
                        count,
                        prompt,
                        temperature,
                        world,
                        draft,
                        length=0 if draft == "none" else (7 * prompt + 11 * number + 5 * turn) % len(LENGTHS),
                        # One in seven goes from holder to holder; seven and five have nothing in common.
                        readout="sweep" if world == "blocks" and count % 7 == 3 else "parallel",
                        disturbance=DISTURBANCES[(prompt + number + turn) % len(DISTURBANCES)],
                        block=int(rng.integers(blocks)),
                        step=1 + (3 * prompt + number) % STEPS[draft],
                        seed=text_seed,
                    )
                )
    return sorted(cells, key=lambda cell: (cell.world, cell.number))


def prompts_from(text: bytes, count: int, seed: int) -> list[bytes]:
    """So many prompts: odd ones first, then pieces of ``text`` of 1 to ``MOST_PROMPT`` bytes."""
    rng = np.random.default_rng([seed, 1])
    found: list[bytes] = list(ODD_PROMPTS[:count])
    while len(found) < count:
        size = int(rng.integers(1, MOST_PROMPT + 1))
        begin = int(rng.integers(len(text) - size))
        found.append(text[begin : begin + size])
    return found


def spread(cells: Sequence[Cell], count: int, seed: int = 0) -> list[Cell]:
    """``count`` of the cells: every five meet all drafters and all disturbances, every 25 all pairs of the two."""
    left: dict[tuple[str, str], list[Cell]] = {}
    for place in np.random.default_rng([seed, 2]).permutation(len(cells)):
        left.setdefault((cells[place].draft, cells[place].disturbance), []).append(cells[place])
    chosen: list[int] = []
    while len(chosen) < min(count, len(cells)):
        for shift, (number, (_, draft)) in itertools.product(range(len(DISTURBANCES)), enumerate(DRAFTERS)):
            if group := left.get((draft, DISTURBANCES[(number + shift) % len(DISTURBANCES)])):
                chosen.append(group.pop().number)
    kept = set(chosen[:count])
    return [cell for cell in cells if cell.number in kept]
