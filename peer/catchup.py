"""Catching up: fetching a heavier state in the background while training goes on, and going over to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from blockswarm.clock import Clock
from blockswarm.errors import BlockswarmError
from blockswarm.peer.forks import Forks, Judgement
from blockswarm.peer.heads import Head
from blockswarm.peer.live import LiveWeights
from blockswarm.peer.states import State
from blockswarm.swarm.policy.acceptance import heavier


class StateSource(Protocol):
    """Where newer states come from."""

    async def newer(self, own: State, heads: list[Head]) -> State | None:
        """The verified state that others offer, ``heads`` first, and that wins over ``own``; may raise."""
        ...


class CatchUp:
    """At most one transfer per subject; while it lasts, the subject sits rounds out.

    Parameters
    ----------
    live : LiveWeights
        What is brought onto the new state.
    source : StateSource
        Where it comes from.
    clock : Clock
        The swarm's time.
    emit : callable
        Told of adopted states and failures.
    adopted : callable
        Called after every adoption.
    forks : Forks, optional
        Says which of two lines wins, and merges the other. Without it certified samples decide, and nothing is merged.
    """

    def __init__(
        self,
        live: LiveWeights,
        source: StateSource,
        clock: Clock,
        *,
        emit: Callable[[dict[str, Any]], None],
        adopted: Callable[[], None],
        forks: Forks | None = None,
    ) -> None:
        self._forks = forks
        self._live = live
        self._source = source
        self._clock = clock
        self._emit = emit
        self._adopted = adopted
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = {subject: asyncio.Event() for subject in live.subjects}
        self.deaf = False
        """News is passed over: whose work lies on the way goes over to newer states when it has arrived."""
        self.locks = {subject: asyncio.Lock() for subject in live.subjects}
        """Held by whoever changes a subject's state: a round from its snapshot on, or an adoption."""

    def busy(self, subject: int) -> bool:
        """Whether a transfer of the subject is under way."""
        return subject in self._tasks

    def start(self, subject: int, heads: list[Head], *, not_before: float = 0.0) -> None:
        """Fetch what ``heads`` promise, unless that is under way.

        Parameters
        ----------
        subject : int
            Block or embedding.
        heads : list of Head
            Peers known to be ahead.
        not_before : float
            Unix seconds; news of a certified state ends the wait. What others hold during a round is outdated at its
            close, and with it we would stay one round behind for ever.
        """
        if subject in self._tasks:
            return
        self._news[subject].clear()
        task = asyncio.create_task(self._run(subject, heads, not_before), name=f"catch up on subject {subject}")
        self._tasks[subject] = task
        task.add_done_callback(lambda _: self._tasks.pop(subject, None))

    def hear(self, subject: int, head: Head) -> None:
        """News of a certified state that outweighs ours: fetch it now."""
        if self.deaf:
            return
        self._news[subject].set()
        self.start(subject, [head])

    async def refresh(self) -> None:
        """Look once whether others are ahead, and go over to what they have; before the first round."""
        for subject in self._live.subjects:
            self.start(subject, [])
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def stop(self) -> None:
        """Drop transfers under way."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _run(self, subject: int, heads: list[Head], not_before: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, not_before - self._clock.now())):
                await self._news[subject].wait()
        except TimeoutError:
            pass
        try:
            state = await self._source.newer(self._live.head(subject), heads)
            if state is None:
                return
            async with self.locks[subject]:
                own = self._live.head(subject)
                if self._forks is not None:
                    judgement = self._forks.judge(own, state.digest, state.samples)
                else:
                    judgement = Judgement(heavier(state.samples, state.digest, own.samples, own.digest))
                if not judgement.go:
                    return  # meanwhile a round has brought us as far
                carried = await self._live.adopt(state, fork=judgement.fork is not None)
                if self._forks is not None:
                    await self._forks.adopted(own, state)
        except BlockswarmError as error:
            self._emit({"event": "warning", "message": f"catching up failed: {error}"})
            return
        self._emit(
            {
                "event": "state",
                "subject": subject,
                "round": state.round,
                "digest": state.digest.hex(),
                "samples": state.samples,
                "carried": carried,
            }
        )
        self._adopted()
