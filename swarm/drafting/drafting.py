"""A drafter at work for one text: how far it guesses, and where."""

from __future__ import annotations

from functools import partial

import trio

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.drafter import Choose, Drafter
from blockswarm.swarm.policy.drafting import DraftPace


class Drafting:
    """A drafter at work for one text.

    Parameters
    ----------
    drafter : Drafter
        Who guesses.
    pace : DraftPace
        How far.
    """

    def __init__(self, drafter: Drafter, pace: DraftPace) -> None:
        self.pace = pace
        self._drafter = drafter

    async def propose(self, text: bytes, most: int, choose: Choose) -> bytes:
        """A draft of the length that pays, at most ``most`` bytes."""
        length = self.pace.length(most)
        if length <= 0:
            return b""
        work = partial(self._drafter.propose, text, length, choose)
        return await trio.to_thread.run_sync(work) if self._drafter.heavy else work()

    def learn(self, text: bytes, rows: Float32) -> None:
        """What the swarm predicts; see ``Drafter.learn``."""
        self._drafter.learn(text, rows)
