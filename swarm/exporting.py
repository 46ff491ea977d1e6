"""A whole model out of a live swarm into a folder: the newest certified state of every subject."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio

from blockswarm.model.layout import digest_of_chunks
from blockswarm.naming import option
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.core import Core
from blockswarm.swarm.counts.fetching import fetch_counts
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.fetching import LostStateError, Offered, fetch, find, holding
from blockswarm.swarm.holders import gather
from blockswarm.swarm.manifest import COUNTS, subject_name
from blockswarm.swarm.model_card import ModelSummary
from blockswarm.swarm.model_folder import SavedState
from blockswarm.swarm.model_writer import ModelFolderWriter
from blockswarm.swarm.options import Progress
from blockswarm.swarm.race import drain

EXPORT_SECONDS = 600.0
"""Time for a whole model, unless the user says otherwise."""

AT_ONCE = 4
"""States fetched side by side; each is in memory until it is written."""

ATTEMPTS = 3
"""Times the newest state of a subject is looked up; one that training has left behind meanwhile is lost."""


class Export:
    """One export.

    Parameters
    ----------
    core : Core
        The swarm.
    progress : callable, optional
        Called as ``progress(bytes done, bytes in total)``.
    """

    def __init__(self, core: Core, progress: Progress | None = None) -> None:
        self._core = core
        self._progress = progress
        manifest = core.manifest
        self._total = 4 * sum(manifest.parameters(subject) for subject in manifest.subjects)
        self._total += 0 if manifest.counts is None else manifest.counts.bytes
        self._done = 0
        self._waiting: set[int] = set()

    async def run(self, folder: str | Path, force: bool, seconds: float) -> ModelSummary:
        """Fetch everything into ``folder``.

        Parameters
        ----------
        folder : str or Path
            Must not exist, or be empty.
        force : bool
            Replace an older model folder.
        seconds : float
            Time for fetching.

        Raises
        ------
        NoHolderError
            Naming a block that nobody holds; found out before anything is fetched.
        ModelFolderError
            When the folder holds something else or cannot be written.
        DeadlineError
            When the time is up; says how far it got and which states are missing.
        """
        writer = ModelFolderWriter(folder, self._core.manifest, force=force)
        try:
            await trio.to_thread.run_sync(writer.open)
            await self._within(seconds, writer)
            return await trio.to_thread.run_sync(writer.finish)
        finally:
            # No thread at work is left alone when the export is cancelled, so the writer is idle by now.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(writer.close)

    async def _within(self, seconds: float, writer: ModelFolderWriter) -> None:
        with trio.move_on_after(seconds) as scope:
            await self._work(writer)
        if scope.cancelled_caught:
            missing = ", ".join(subject_name(subject) for subject in sorted(self._waiting)) or "holders"
            raise DeadlineError(
                f"{seconds:g} s were not enough: {self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB fetched, waiting "
                f"for {missing}; allow more with {option('timeout')}"
            )

    async def _work(self, writer: ModelFolderWriter) -> None:
        await self._core.survey()
        subjects = list(self._core.manifest.subjects)
        wanted = subjects if self._core.manifest.counts is None or self._core.counts else [*subjects, COUNTS]
        found = await gather(partial(find, self._core, subject) for subject in wanted)
        for offered in found:
            if isinstance(offered, Exception):
                raise offered
        self._waiting = set(wanted)
        await drain(found[: len(subjects)], partial(self._fetch_and_write, writer), workers=AT_ONCE)
        if self._core.manifest.counts is not None:
            await self._add_counts(writer)

    async def _add_counts(self, writer: ModelFolderWriter) -> None:
        """The counts never change, so they are fetched into the cache like for anything else, and copied from there."""
        core = self._core
        if core.counts is None:
            core.take_counts(await fetch_counts(core, self._count))
        else:
            self._count(core.counts.size)
        assert core.counts is not None
        await trio.to_thread.run_sync(writer.add_counts, core.counts)
        self._waiting.discard(COUNTS)

    async def _fetch_and_write(self, writer: ModelFolderWriter, offered: Offered) -> None:
        for attempt in range(ATTEMPTS):
            try:
                values = await self._fetch(offered)
                break
            except LostStateError as error:
                if attempt + 1 == ATTEMPTS:
                    raise
                self._core.notify("re-pinned", f"{error}; taking what there is now")
                await self._core.survey(fresh=True, blocks=holding(self._core, offered.subject))
                offered = await find(self._core, offered.subject)
        head = offered.head
        momentum = digest_of_chunks(head.momentum) if head.momentum else b""
        state = SavedState(offered.subject, values, head.round, head.samples, head.certificate, momentum)
        await trio.to_thread.run_sync(writer.add, state)
        self._waiting.discard(offered.subject)

    async def _fetch(self, offered: Offered) -> Float32:
        """One attempt; others run beside it, so when the state is lost only its own bytes are taken back."""
        arrived = 0

        def count(size: int) -> None:
            nonlocal arrived
            arrived += size
            self._count(size)

        try:
            return await fetch(self._core, offered, count)
        except LostStateError:
            self._count(-arrived)
            raise

    def _count(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)
