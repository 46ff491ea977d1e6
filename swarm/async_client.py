"""The asyncio face of the client; see :mod:`blockswarm.swarm.client`, whose names and arguments it shares."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from blockswarm.swarm import operations, status
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.client_base import (
    CONNECT_TIMEOUT,
    ClientBase,
    Peers,
    close,
    fill_cache,
    open_cache,
    read_peers,
    start,
    warn_incomplete,
)
from blockswarm.swarm.deadline import Deadline, check_timeout
from blockswarm.swarm.exporting import EXPORT_SECONDS, Export
from blockswarm.swarm.generation import Piece
from blockswarm.swarm.model_card import ModelSummary
from blockswarm.swarm.operations import Holder
from blockswarm.swarm.options import (
    Progress,
    Reading,
    ReadingOptions,
    Writing,
    WritingOptions,
    as_bytes,
)
from blockswarm.swarm.score import Score, Spans
from blockswarm.swarm.status import SwarmStatus


class AsyncSwarmClient(ClientBase):
    """The client for asyncio (uvloop included); every call may be cancelled.

    >>> async with AsyncSwarmClient.connect("bootstrap_peers.txt") as swarm:
    ...     async for piece in swarm.stream("def "):
    ...         print(piece, end="")
    """

    @classmethod
    def connect(
        cls,
        peers: Peers,
        *,
        run: str | None = None,
        timeout: float | Deadline = CONNECT_TIMEOUT,
        cache: str | Path | None = None,
        counts: str | Path | None = None,
    ) -> Connecting:
        """Reach a swarm: ``await`` it, or use it with ``async with``; arguments and errors as for ``SwarmClient``."""
        return Connecting(cls, peers, run, timeout, cache, counts)

    async def generate(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> str:
        """Text that follows ``prompt``; see :meth:`blockswarm.swarm.client.SwarmClient.generate`."""
        text, report = await self._thread.run_async(
            operations.generate, self._core, as_bytes(prompt), Writing(**options)
        )
        warn_incomplete(report)
        return text

    def stream(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> AsyncIterator[str]:
        """The same text in pieces, each as soon as it is certain; iterate with ``async for``."""
        return self._texts(self._pieces(as_bytes(prompt), Writing(**options)))

    def pieces(
        self, prompt: str | bytes = "", *, rows: bool = False, whole: bool = False, **options: Unpack[WritingOptions]
    ) -> AsyncGenerator[Piece, None]:
        """The same with all there is to know; see :meth:`blockswarm.swarm.client.SwarmClient.pieces`."""
        return self._pieces(as_bytes(prompt), Writing(**options, rows=rows), whole=whole)

    async def _texts(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[str, None]:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece.text:
                    yield piece.text

    async def _pieces(self, prompt: bytes, asked: Writing, *, whole: bool = False) -> AsyncGenerator[Piece, None]:
        generation = await self._thread.run_async(operations.begin, self._core, prompt, asked)
        told = 0
        last = False
        while not last:
            piece = await self._thread.run_async(generation.whole if whole else generation.next_piece)
            told, last = warn_incomplete(generation.report, told=told), piece.last
            yield piece

    async def logprobs(self, text: str | bytes, **options: Unpack[ReadingOptions]) -> Float32:
        """Float32 ``[len, 256]``; see :meth:`blockswarm.swarm.client.SwarmClient.logprobs`."""
        work = (operations.logprobs, self._core, as_bytes(text), Reading(**options))
        table, report = await self._thread.run_async(*work)
        warn_incomplete(report)
        return table

    async def score(
        self,
        text: str | bytes,
        *,
        given: str | bytes = b"",
        spans: Spans | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Score:
        """How likely ``text`` is; see :meth:`blockswarm.swarm.client.SwarmClient.score`."""
        work = (operations.score, self._core, as_bytes(text), as_bytes(given), spans, Reading(**options))
        result, report = await self._thread.run_async(*work)
        warn_incomplete(report)
        return result

    async def export(
        self,
        folder: str | Path,
        *,
        force: bool = False,
        timeout: float | Deadline = EXPORT_SECONDS,
        progress: Progress | None = None,
    ) -> ModelSummary:
        """Write the whole model into a folder; see :meth:`blockswarm.swarm.client.SwarmClient.export`."""
        return await self._thread.run_async(Export(self._core, progress).run, folder, force, check_timeout(timeout))

    async def holders(self, *, fresh: bool = True) -> dict[int, list[Holder]]:
        """Everybody on record for each block; ``fresh=False`` is content with what was known seconds ago."""
        return await self._thread.run_async(operations.holders, self._core, fresh)

    async def status(self) -> SwarmStatus:
        """How far training is, who holds what, and how fresh that knowledge is."""
        return await self._thread.run_async(status.survey, self._core)

    async def close(self) -> None:
        """Drop all connections and end the thread, in at most two seconds. May be called twice."""
        await asyncio.to_thread(self._finalizer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Connecting:
    """A connection on its way: ``client = await …`` or ``async with … as client``."""

    def __init__(
        self,
        kind: type[AsyncSwarmClient],
        peers: Peers,
        run: str | None,
        timeout: float | Deadline,
        cache: str | Path | None,
        counts: str | Path | None,
    ) -> None:
        self._arguments = (kind, peers, run, timeout, cache, counts)
        self._client: AsyncSwarmClient | None = None

    def __await__(self) -> Generator[object, None, AsyncSwarmClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncSwarmClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncSwarmClient:
        kind, peers, run, timeout, cache, counts = self._arguments
        known = await asyncio.to_thread(open_cache, cache)
        addresses = await asyncio.to_thread(read_peers, peers, known)
        thread, core = start()
        try:
            await thread.run_async(core.connect, addresses, run, check_timeout(timeout), counts)
            await asyncio.to_thread(fill_cache, known, core)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(close, thread, core))
            raise
        return kind(thread, core)
