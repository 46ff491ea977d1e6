"""A drafter at work for one text: how far it guesses, and where."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import trio

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.drafter import Choose, Drafter
from blockswarm.swarm.policy.drafting import DraftPace


class Drafting(Protocol):
    """What a generation asks of whoever guesses ahead."""

    async def propose(self, text: bytes, most: int, choose: Choose, *, unanswered: int | None = None) -> bytes:
        """A draft of at most ``most`` bytes; none is one too.

        Where several questions may be under way ``unanswered`` says how many bytes at the end of ``text`` are guesses
        themselves, not answered yet.
        """
        ...

    def would(self, most: int, unanswered: int) -> bool:
        """Whether ``propose`` would make a draft behind so many bytes that are not answered yet."""
        ...

    def note(self, told: bytes, rows: Float32, *, drafted: int, accepted: int, seconds: float | None) -> None:
        """How it went.

        Parameters
        ----------
        told, rows
            What the swarm predicts; see ``Drafter.learn``.
        drafted, accepted : int
            Bytes it was asked about, and how many of them stand in the text.
        seconds : float, optional
            From asking to the answer; None where it was asked behind another question.
        """
        ...


class PacedDrafting:
    """A drafter, and the length of draft that pays.

    Parameters
    ----------
    drafter : Drafter
        Who guesses.
    pace : DraftPace
        How far.
    """

    def __init__(self, drafter: Drafter, pace: DraftPace) -> None:
        self._drafter = drafter
        self._pace = pace

    async def propose(self, text: bytes, most: int, choose: Choose, *, unanswered: int | None = None) -> bytes:
        """A draft of the length that pays, at most ``most`` bytes; see ``Drafting.propose``."""
        length = self._pace.length(most) if unanswered is None else self._pace.piece(most, unanswered)
        if length <= 0:
            return b""
        began = trio.current_time()
        work = partial(self._drafter.propose, text, length, choose)
        draft = await trio.to_thread.run_sync(work) if self._drafter.heavy else work()
        self._pace.made(len(draft), trio.current_time() - began)
        return draft

    def would(self, most: int, unanswered: int) -> bool:
        """See ``Drafting.would``."""
        return self._pace.piece(most, unanswered) > 0

    def note(self, told: bytes, rows: Float32, *, drafted: int, accepted: int, seconds: float | None) -> None:
        """How it went; see ``Drafting.note``."""
        self._pace.note(drafted=drafted, accepted=accepted, seconds=seconds)
        self._drafter.learn(told, rows)
