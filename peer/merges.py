"""The merges of a volunteer that are under way, and which forks it has merged: kept so that nothing goes in twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.peer.fork_files import ForkFiles
from blockswarm.peer.merging import MERGE_ROUNDS, Merge, norm_of
from blockswarm.peer.states import State

KEPT_BRANCHES = 64
"""Lost lines that are remembered."""

JOURNAL_SECONDS = 1.0
"""A disk that takes longer for a few hundred bytes keeps nothing safe: the round goes on without a merge."""

Float32 = npt.NDArray[np.float32]


class Merges:
    """At most one merge of each subject; a second fork adds to it.

    Parameters
    ----------
    files : ForkFiles or None
        Where they outlast a restart.
    emit : callable
        Told when one ends.
    """

    def __init__(self, files: ForkFiles | None, emit: Callable[[dict[str, Any]], None]) -> None:
        self._files = files
        self._emit = emit
        self._open: dict[int, Merge] = {}
        self._begun: dict[int, list[str]] = {}

    def resume(self, subject: int) -> None:
        """Take up what was kept before a restart. Blocks: call it in a thread."""
        if self._files is None:
            return
        journal = self._files.read_journal(subject)
        self._begun[subject] = [str(branch) for branch in journal.get("merged", [])][-KEPT_BRANCHES:]
        if (kept := self._files.read("merge", subject)) is None:
            return
        values, notes = kept
        left, branches = journal.get("left"), tuple(notes["branches"])
        if isinstance(left, float) and abs(left) <= 2.0 and tuple(journal.get("branches", ())) == branches:
            self._open[subject] = Merge(values, norm_of(values), int(notes["until"]), branches, left)
        else:
            self._files.drop("merge", subject)

    def of(self, subject: int) -> Merge | None:
        """The merge under way."""
        return self._open.get(subject)

    def begun(self, subject: int) -> list[str]:
        """Lost lines of which this peer has begun to bring in its work, by the names of their first states (hex)."""
        return self._begun.get(subject, [])

    async def begin(self, subject: int, values: Float32, now: int, branch: str) -> None:
        """Bring in ``values`` from round ``now`` on; what was left of an earlier merge is in them."""
        former = self._open.get(subject)
        branches = (*(former.branches if former is not None else ()), branch)
        merge = self._open[subject] = Merge(values, norm_of(values), now + MERGE_ROUNDS, branches)
        begun = self._begun.setdefault(subject, [])
        begun.append(branch)
        del begun[:-KEPT_BRANCHES]
        if self._files is None:
            return
        try:
            await self.save(subject)  # first, as without its values it does no harm
            notes = {"branches": list(branches), "until": merge.until}
            await asyncio.to_thread(self._files.keep, "merge", subject, values, notes)
        except OSError as error:
            reason = error.strerror or str(error)
            self._emit({"event": "warning", "message": f"a merge is not safe from a restart: {reason}"})

    async def open(self, subject: int, round_number: int) -> Merge | None:
        """The merge of which a round may take a share; one that takes too long is given up."""
        merge = self._open.get(subject)
        if merge is not None and round_number > merge.until:
            await self._end(subject, f"given up: it did not go in within {MERGE_ROUNDS} rounds")
            return None
        return None if merge is None or merge.waits_for or merge.done else merge

    async def note(self, subject: int) -> bool:
        """Keep what a round has taken, before it is sent; whether it could be kept in time."""
        try:
            async with asyncio.timeout(JOURNAL_SECONDS):
                await self.save(subject)
        except OSError:  # TimeoutError is one
            return False
        return True

    async def save(self, subject: int) -> None:
        """Keep what is left. Raises `OSError`."""
        if self._files is None:
            return
        journal: dict[str, Any] = {"merged": self.begun(subject)}
        if (merge := self._open.get(subject)) is not None:
            journal |= {"branches": list(merge.branches), "left": float(merge.left)}
        await asyncio.to_thread(self._files.write_journal, subject, journal)

    async def settled(self, state: State) -> None:
        """This peer has gone over to a state."""
        if (merge := self._open.get(state.subject)) is not None:
            merge.settled(state.digest)
            if merge.done:
                await self._end(state.subject, "done")
            else:
                await self.open(state.subject, state.round)  # a contributor is in no round that would give it up

    async def cancel(self, subject: int, states: set[str]) -> None:
        """This peer is on a line with these states (hex) now: what is in it needs no merge."""
        merge = self._open.get(subject)
        if merge is not None and states & set(merge.branches):
            await self._end(subject, "no longer needed: that line has won after all")

    async def _end(self, subject: int, how: str) -> None:
        merge = self._open.pop(subject)
        self._emit({"event": "merged", "subject": subject, "share": 1.0 - merge.left, "how": how})
        if self._files is not None:
            try:
                await asyncio.to_thread(self._files.drop, "merge", subject)
                await self.save(subject)
            except OSError as error:
                reason = error.strerror or str(error)
                self._emit({"event": "warning", "message": f"what was kept of a merge cannot be removed: {reason}"})
