"""Which block owns which noise level: the one σ → block function, used in training and in inference alike.

σ follows a log-normal law, ln σ ~ N(p_mean, p_std²), cut to [sigma_min, sigma_max]. The blocks' intervals hold equal
probability mass. **High σ is block 0**, the first block; block B-1 owns the lowest noise.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

from blockswarm.model.config import Recipe
from blockswarm.model.errors import ModelError

_STANDARD = NormalDist()


def _mass(recipe: Recipe, sigma: float) -> float:
    """c(σ) = Φ((ln σ − p_mean) / p_std)."""
    return _STANDARD.cdf((math.log(sigma) - recipe.p_mean) / recipe.p_std)


def _sigma(recipe: Recipe, mass: float) -> float:
    """The inverse of ``_mass``."""
    return math.exp(recipe.p_mean + recipe.p_std * _STANDARD.inv_cdf(mass))


def boundaries(recipe: Recipe, blocks: int) -> list[float]:
    """The B+1 ascending noise levels that cut [sigma_min, sigma_max] into intervals of equal probability mass.

    Parameters
    ----------
    recipe : Recipe
        Gives sigma_min, sigma_max, p_mean, p_std.
    blocks : int
        Number of blocks B, at least 1.

    Returns
    -------
    list of float
        ``blocks + 1`` values; the first is sigma_min, the last sigma_max, exactly.

    Raises
    ------
    ModelError
        If ``blocks`` is below 1, or the range holds too little probability mass to be cut in floating point.
    """
    if blocks < 1:
        raise ModelError(f"blocks = {blocks}: a model has at least one block")
    low, high = _mass(recipe, recipe.sigma_min), _mass(recipe, recipe.sigma_max)
    inner = [low + (high - low) * i / blocks for i in range(1, blocks)]
    if not all(0.0 < mass < 1.0 for mass in inner):
        raise ModelError("sigma_min … sigma_max lies too far from p_mean: next to no noise level is drawn there")
    cuts = [recipe.sigma_min, *(_sigma(recipe, mass) for mass in inner), recipe.sigma_max]
    if any(a >= b for a, b in itertools.pairwise(cuts)):
        raise ModelError(f"{blocks} blocks: the noise range sigma_min … sigma_max is too narrow to cut so often")
    return cuts


def _check_block(blocks: int, block: int) -> None:
    if not 0 <= block < blocks:
        raise ModelError(f"block {block} does not exist: the model has blocks 0 to {blocks - 1}")


def owned(recipe: Recipe, blocks: int, block: int) -> tuple[float, float]:
    """The (low, high] interval of σ that ``block`` owns, without overlap; ``block_of_sigma`` is its inverse."""
    _check_block(blocks, block)
    cuts = boundaries(recipe, blocks)
    return cuts[blocks - 1 - block], cuts[blocks - block]


def interval(recipe: Recipe, blocks: int, block: int) -> tuple[float, float]:
    """The interval of σ that ``block`` trains on: what it owns, widened by the overlap.

    Both ends move outward by ``overlap · (ln high − ln low)`` in ln σ, clamped to [sigma_min, sigma_max].

    Returns
    -------
    (float, float)
        Low and high σ.

    Raises
    ------
    ModelError
        If there is no such block.
    """
    low, high = owned(recipe, blocks, block)
    stretch = math.exp(recipe.overlap * (math.log(high) - math.log(low)))
    return max(recipe.sigma_min, low / stretch), min(recipe.sigma_max, high * stretch)


def block_of_sigma(recipe: Recipe, blocks: int, sigma: float) -> int:
    """The block that owns noise level ``sigma``.

    A boundary belongs to the block below it in σ, so a block owns the level it is read out at; sigma_min belongs to the
    last block.

    Raises
    ------
    ModelError
        If ``sigma`` is outside [sigma_min, sigma_max].
    """
    cuts = boundaries(recipe, blocks)
    if not cuts[0] <= sigma <= cuts[-1]:
        raise ModelError(f"sigma {sigma} is outside the model's range {cuts[0]} to {cuts[-1]}")
    ascending = sum(1 for cut in cuts[1:-1] if sigma > cut)
    return blocks - 1 - ascending


def readout_sigma(recipe: Recipe, blocks: int, block: int) -> float:
    """The noise level at which ``block`` is asked on its own (z = 0): the upper end of what it *owns*.

    The overlap plays no part, so this is also the level at which the sweep enters the block.
    """
    return owned(recipe, blocks, block)[1]


def sweep_sigmas(recipe: Recipe, blocks: int) -> list[float]:
    """The noise levels of the Euler sweep, one per block, descending from sigma_max.

    Block b computes at ``sweep_sigmas[b]`` and, unless it is the last, steps to ``sweep_sigmas[b + 1]``; the last
    block's logits at its own level are the output.
    """
    return boundaries(recipe, blocks)[:0:-1]


def sigma_at(recipe: Recipe, blocks: int, block: int, u: float) -> float:
    """The σ at quantile ``u`` of the log-normal law restricted to the block's training interval (inverse CDF).

    Parameters
    ----------
    recipe : Recipe
        The noise law.
    blocks, block : int
        The interval to draw from.
    u : float
        A uniform draw from [0, 1].

    Returns
    -------
    float
        σ within ``interval(recipe, blocks, block)``.
    """
    low, high = interval(recipe, blocks, block)
    mass_low, mass_high = _mass(recipe, low), _mass(recipe, high)
    mass = mass_low + (mass_high - mass_low) * u
    if not 0.0 < mass < 1.0:
        return low if mass <= 0.0 else high
    return min(high, max(low, _sigma(recipe, mass)))
