"""The drafters that a client has, by the name a caller gives.

========= =============================================================================================================
``none``  one byte a round trip
``ngram`` what stood in prompt and output, and what the swarm has said before: nothing is fetched
a path    the same over an n-gram file, as ``blockswarm.model.ngram`` writes it
========= =============================================================================================================
"""

from __future__ import annotations

from pathlib import Path

import trio

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.drafting.blend import ROW_TRUST, BlendDrafter
from blockswarm.swarm.drafting.drafter import Predict
from blockswarm.swarm.drafting.drafting import Drafting
from blockswarm.swarm.drafting.memory import RowMemory
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.policy.drafting import DraftPace

NAMES = ("none", "ngram")
"""Drafters that need no file."""


class Shelf:
    """What drafters know and how well they did, kept from one call to the next."""

    def __init__(self) -> None:
        self._memory = RowMemory([order for order, _ in ROW_TRUST])
        self._paces: dict[str, DraftPace] = {}
        self._counts: dict[str, NgramModel] = {}

    async def open(self, draft: str, *, blocks: int) -> Drafting | None:
        """The drafter called ``draft`` for one text, of a model of so many blocks; None for ``none``.

        Raises
        ------
        ArgumentError
            When ``draft`` is no drafter's name and no n-gram file.
        """
        if draft == "none":
            return None
        base = None if draft == "ngram" else await self._read_counts(draft)
        pace = self._paces.setdefault(draft, DraftPace(blocks))
        return Drafting(BlendDrafter(base, memory=self._memory), pace)

    async def _read_counts(self, path: str) -> Predict:
        if path not in self._counts:
            try:
                self._counts[path] = await trio.to_thread.run_sync(NgramModel.open, Path(path))
            except ModelError as error:
                names = ", ".join(map(repr, NAMES))
                raise ArgumentError(f"{option('draft', path)}: not {names}, and no n-gram file: {error}") from error
        return self._counts[path].next_log_probs
