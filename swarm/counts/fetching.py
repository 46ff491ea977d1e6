"""Fetching a run's counts into the cache: verified piece by piece, resumed where an earlier attempt stopped."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import trio

from blockswarm.model.layout import CHUNK_BYTES, COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.core import Core
from blockswarm.swarm.counts.files import CountsError, cache_folder, file_name, open_counts
from blockswarm.swarm.drafting.beside import fetch_beside
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.fetching import fetch_chunks, find
from blockswarm.swarm.messages import StateHead

FETCH_SECONDS = 900.0
"""Time for a fetch beside other work."""


def begin_fetch(core: Core) -> None:
    """Have the counts of the run fetched beside everything else, if they are not here; an event tells how that went.

    Raises
    ------
    ArgumentError
        If the run has no counts.
    """
    if core.manifest.counts is None:
        raise ArgumentError(f"{option('draft', 'counts')}: {core.manifest.run_id} has no n-gram counts")
    fetch_beside(core, "counts", FETCH_SECONDS, partial(_take_counts, core))


async def _take_counts(core: Core) -> str:
    model = await fetch_counts(core, lambda size: None)
    core.take_counts(model)
    return f"the counts are here ({model.size / 2**20:.1f} MiB)"


async def fetch_counts(core: Core, arrived: Callable[[int], None], folder: Path | None = None) -> NgramModel:
    """The counts of the run, from holders into ``folder`` (by default the cache); the caller bounds the time.

    Parameters
    ----------
    core : Core
        The swarm.
    arrived : callable
        Called with the number of bytes of each piece that is there.
    folder : Path, optional
        Where the file is kept, by its digest; made when missing.

    Raises
    ------
    NoHolderError
        When nobody has them.
    LostStateError
        When holders stop giving them; a later call goes on with what has arrived.
    CountsError
        When the file cannot be written, or what the manifest names is no n-gram file.
    """
    wanted = core.manifest.counts
    assert wanted is not None  # checked by the callers, who know what to say
    path = (cache_folder() if folder is None else folder) / file_name(wanted)
    if path.exists():  # another program has been faster
        with contextlib.suppress(CountsError):
            model = await trio.to_thread.run_sync(open_counts, path, wanted)
            arrived(model.size)
            return model
    offered = await find(core, COUNTS)
    part = await trio.to_thread.run_sync(_Part.open, path, offered.head)
    try:
        for index in part.there:
            arrived(offered.head.chunk_bytes(index))

        async def keep(index: int, chunk: bytes) -> None:
            await trio.to_thread.run_sync(part.put, index, chunk)
            arrived(len(chunk))

        missing = [index for index in range(offered.head.chunk_count) if index not in part.there]
        await fetch_chunks(core, offered, missing, keep)
        await trio.to_thread.run_sync(part.finish)
    finally:
        part.close()
    return await trio.to_thread.run_sync(open_counts, path, wanted)


class _Part:
    """A file in the making. What it holds is looked at piece by piece when it is taken up again."""

    def __init__(self, path: Path, unfinished: Path, file: BinaryIO, head: StateHead) -> None:
        self._path, self._unfinished, self._file = path, unfinished, file
        self.there = {
            index
            for index in range(head.chunk_count)
            if hashlib.sha256(self._read(index, head.chunk_bytes(index))).digest() == head.chunk_digest(index)
        }
        """Pieces that are there already."""

    @classmethod
    def open(cls, path: Path, head: StateHead) -> _Part:
        """Go on with the unfinished file beside ``path``, or begin one."""
        unfinished = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Two programs may fetch the same file: they write the same bytes to the same places.
            handle = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CountsError(f"{unfinished}: cannot be written: {error.strerror}") from error
        file = os.fdopen(handle, "r+b", buffering=0)
        try:
            return cls(path, unfinished, file, head)
        except OSError as error:
            file.close()
            raise CountsError(f"{unfinished}: cannot be read: {error.strerror}") from error

    def put(self, index: int, chunk: bytes) -> None:
        """Write piece ``index``, which was verified."""
        try:
            os.pwrite(self._file.fileno(), chunk, index * CHUNK_BYTES)
        except OSError as error:
            raise CountsError(f"{self._unfinished}: cannot be written: {error.strerror}") from error

    def finish(self) -> None:
        """All pieces are there: the file takes its name."""
        try:
            os.fsync(self._file.fileno())
            with contextlib.suppress(FileNotFoundError):  # the other program has been faster
                self._unfinished.replace(self._path)
        except OSError as error:
            raise CountsError(f"{self._path}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Let go of the file; what has arrived stays."""
        self._file.close()

    def _read(self, index: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, index * CHUNK_BYTES)
