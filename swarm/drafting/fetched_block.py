"""Fetching a block to draft with, beside the text that is being written."""

from __future__ import annotations

from functools import partial

from blockswarm.model.numpy_block import NumpyBlock
from blockswarm.naming import option
from blockswarm.swarm.core import Core
from blockswarm.swarm.drafting.beside import fetch_beside
from blockswarm.swarm.drafting.blend import OVER_PREDICTOR, OVER_TARGET, Blend
from blockswarm.swarm.drafting.counts import MixedPredictor
from blockswarm.swarm.drafting.drafter import Predict
from blockswarm.swarm.drafting.local_block import BlockPredictor
from blockswarm.swarm.drafting.shelf import Predictor
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.fetching import fetch, find
from blockswarm.swarm.manifest import EMBEDDING

MOST_BYTES = 64 << 20
"""Largest block that is fetched to draft with: a client is a light program."""

FETCH_SECONDS = 300.0

HEAVY_VALUES = 4 << 20
"""Weights from which on a byte takes more than about a millisecond."""


def begin_fetch(core: Core) -> None:
    """Have the predictor ``block`` put on the client's shelf, beside everything else; an event tells how that went.

    Raises
    ------
    ArgumentError
        If a block of this model is too large to draft with.
    """
    size = 4 * core.manifest.parameters(0)
    if size > MOST_BYTES:
        raise ArgumentError(
            f"{option('draft', 'block')}: a block of this model has {size / 2**20:.0f} MiB, and at most "
            f"{MOST_BYTES >> 20} are fetched to draft with"
        )
    fetch_beside(core, "block", FETCH_SECONDS, partial(_put_block, core))


async def _put_block(core: Core) -> str:
    """The newest certified state is taken, whatever a text is pinned to: drafts need not be right."""
    block = max(core.blocks, key=lambda number: (len(core.live_offers(number)), -number))
    theta, embedding = [
        await fetch(core, await find(core, subject), lambda size: None) for subject in (block, EMBEDDING)
    ]
    made = NumpyBlock(core.manifest.model, core.manifest.recipe, block, theta, embedding)

    def predictor() -> Predict:
        """Made for each text: the counts may have come meanwhile."""
        alone = BlockPredictor(made)
        if core.counts is None or core.manifest.counts is None:
            return alone
        return MixedPredictor(alone, core.counts, core.manifest.counts.weight)

    def blend() -> Blend:
        return OVER_PREDICTOR if core.counts is None else OVER_TARGET

    core.shelf.put("block", Predictor(predictor, heavy=theta.size >= HEAVY_VALUES, blend=blend))
    return f"block {block} is here to draft with ({4 * theta.size / 2**20:.1f} MiB)"
