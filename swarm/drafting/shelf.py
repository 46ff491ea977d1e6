"""The drafters that a client has, by the name a caller gives.

========== ============================================================================================================
``none``   one byte a round trip
``ngram``  what stood in prompt and output, and what the swarm has said before: nothing is fetched; where the client
           has the run's n-gram counts, as ``counts``
``counts`` the same over the run's counts; ``ngram`` until they have been fetched
``block``  the same over one block of the model that the client runs itself, mixed with the counts where they are
           here; ``counts`` or ``ngram`` until it has been fetched
a path     the same over an n-gram file, as ``blockswarm.model.ngram`` writes it
========== ============================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.blend import ORDERS, OVER_PREDICTOR, Blend, BlendDrafter
from blockswarm.swarm.drafting.drafter import Choose, Predict
from blockswarm.swarm.drafting.drafting import Drafting, PacedDrafting
from blockswarm.swarm.drafting.memory import RowMemory
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.options import DRAFTERS
from blockswarm.swarm.policy.drafting import DraftPace


@dataclass(frozen=True)
class Predictor:
    """Something that predicts text."""

    make: Callable[[], Predict]
    """Gives the predictor of one text."""
    heavy: bool = False
    """Whether a byte takes it a millisecond or more."""
    blend: Callable[[], Blend] = lambda: OVER_PREDICTOR
    """What stands over it, as of now."""


class Shelf:
    """What drafters know and how well they did, kept from one call to the next."""

    def __init__(self) -> None:
        self._memory = RowMemory(ORDERS)
        self._paces: dict[str, DraftPace] = {}
        self._predictors: dict[str, Predictor] = {}
        self.coming: set[str] = set()
        """Names of predictors that are being fetched."""

    def has(self, draft: str) -> bool:
        """Whether there is a predictor of that name."""
        return draft in self._predictors

    def put(self, draft: str, predictor: Predictor) -> None:
        """From now on this predictor goes by that name; texts that wait for it take it up."""
        self._predictors[draft] = predictor

    async def open(self, draft: str, *, blocks: int) -> Drafting | None:
        """The drafter called ``draft`` for one text, of a model of so many blocks; None for ``none``.

        Raises
        ------
        ArgumentError
            When ``draft`` is neither one of ``DRAFTERS`` nor a sound n-gram file.
        """
        if draft == "none":
            return None
        if draft == "ngram" and self.has("counts"):
            draft = "counts"
        if draft not in DRAFTERS and not self.has(draft):
            await self._read_counts(draft)
        if draft == "ngram" or self.has(draft):
            return self._drafting(draft, blocks)
        first = "counts" if self.has("counts") else "ngram"
        return _Waiting(self._drafting(first, blocks), lambda: self._drafting(draft, blocks), lambda: self.has(draft))

    def _drafting(self, draft: str, blocks: int) -> Drafting:
        predictor = self._predictors.get(draft)
        if predictor is None:
            drafter = BlendDrafter(memory=self._memory)
        else:
            base, blend = predictor.make(), predictor.blend()
            drafter = BlendDrafter(base, memory=self._memory, heavy=predictor.heavy, blend=blend)
        return PacedDrafting(drafter, self._paces.setdefault(draft, DraftPace(blocks)))

    async def _read_counts(self, path: str) -> None:
        try:
            counts = await trio.to_thread.run_sync(NgramModel.open, Path(path))
        except ModelError as error:
            raise ArgumentError(f"{option('draft')} {error}") from error
        self.put(path, Predictor(lambda: counts.next_log_probs))


class _Waiting:
    """One drafting until there is a better one."""

    def __init__(self, first: Drafting, better: Callable[[], Drafting], ready: Callable[[], bool]) -> None:
        self._current, self._better, self._ready = first, better, ready
        self._waits = True

    async def propose(self, text: bytes, most: int, choose: Choose, *, unanswered: int | None = None) -> bytes:
        """See ``Drafting.propose``."""
        if self._waits and self._ready():
            self._current, self._waits = self._better(), False
        return await self._current.propose(text, most, choose, unanswered=unanswered)

    def would(self, most: int, unanswered: int) -> bool:
        """See ``Drafting.would``."""
        return self._current.would(most, unanswered)

    def note(self, told: bytes, rows: Float32, *, drafted: int, accepted: int, seconds: float | None) -> None:
        """See ``Drafting.note``."""
        self._current.note(told, rows, drafted=drafted, accepted=accepted, seconds=seconds)
