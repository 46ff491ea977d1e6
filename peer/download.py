"""One state on its way: which chunks have arrived, which are asked for, which are missing."""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blockswarm.errors import BlockswarmError
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import COUNTS, subject_name
from blockswarm.swarm.messages import StateHead

DUPLICATE_AFTER = 2.0
"""Seconds after which an idle donor is asked for a chunk that another one is still busy with."""


class TransferError(BlockswarmError):
    """A state could not be fetched; the message says why each holder failed."""


@dataclass
class Download:
    """The chunks of one state, arrived and missing. Chunks in it are verified; it can be taken up again later."""

    subject: int
    head: StateHead
    missing: set[int] = field(default_factory=set)
    banned: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    file: Path | None = None
    """Where the bytes are kept instead of in memory. Chunks that it holds already count as arrived."""
    _in_flight: dict[int, float] = field(default_factory=dict)  # chunk → when it was last asked for

    def __post_init__(self) -> None:
        self.missing = set(range(self.head.chunk_count))
        self._data = bytearray(self.head.size) if self.file is None else _mapped(self.file, self.head.size)
        if self.file is not None:
            self.missing -= {index for index in self.missing if self._is_right(index)}
        self._changed = asyncio.Event()

    def restart(self) -> None:
        """A new attempt: nothing is asked for yet, and every donor has a clean slate."""
        self.banned.clear()
        self.problems.clear()
        self._in_flight.clear()

    async def take(self) -> int | None:
        """The next chunk to ask for; waits while others are busy with all there is. ``None``: nothing is missing."""
        while self.missing:
            waiting = self.missing - self._in_flight.keys()
            if waiting:
                return self._mark(min(waiting))
            oldest = min(self.missing, key=lambda index: self._in_flight[index])
            age = time.monotonic() - self._in_flight[oldest]
            if age >= DUPLICATE_AFTER:
                return self._mark(oldest)
            self._changed.clear()
            try:
                async with asyncio.timeout(DUPLICATE_AFTER - age):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return None

    def _mark(self, index: int) -> int:
        self._in_flight[index] = time.monotonic()
        return index

    def give_back(self, index: int) -> None:
        """Chunk ``index`` did not come: someone else may try."""
        self._in_flight.pop(index, None)
        self._changed.set()

    def put(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Keep chunk ``index`` if it is what its digest says."""
        self.give_back(index)
        if len(data) != self.head.chunk_bytes(index) or hashlib.sha256(data).digest() != self.head.chunk_digest(index):
            return False
        begin = self.head.chunk_begin(index)
        self._data[begin : begin + len(data)] = data
        self.missing.discard(index)
        return True

    def _is_right(self, index: int) -> bool:
        begin = self.head.chunk_begin(index)
        chunk = self._data[begin : begin + self.head.chunk_bytes(index)]
        return hashlib.sha256(chunk).digest() == self.head.chunk_digest(index)

    def finish(self) -> State:
        """The whole state."""
        vectors = np.frombuffer(self._data, dtype="<f4").astype(np.float32, copy=False)
        vectors.flags.writeable = False
        if self.subject != COUNTS and not np.isfinite(vectors).all():  # the counts are no floating-point numbers
            raise TransferError(f"the state of {subject_name(self.subject)} is not finite")
        head = self.head
        return State(
            self.subject,
            head.round,
            vectors[: head.values],
            head.digest,
            head.samples,
            head.certificate,
            head.chunks,
            vectors[head.values :] if head.momentum else None,
            head.momentum,
        )


def _mapped(path: Path, size: int) -> mmap.mmap:
    """A file of ``size`` bytes as memory that is written to disk; what stood in it stays."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, size)
            os.posix_fallocate(handle, 0, size)  # now, since a full disk would end the process when a page is touched
            return mmap.mmap(handle, size)
        finally:
            os.close(handle)
    except OSError as error:
        raise TransferError(f"{path}: cannot be written: {error.strerror}") from error
