"""Writes the texts of one request through the swarm, several at a time, and tells them step by step."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, Unpack

from blockswarm.swarm.answers import Float32
from blockswarm.swarm.deadline import Deadline
from blockswarm.swarm.gateway.ahead import one_ahead
from blockswarm.swarm.gateway.jobs import Job, Order
from blockswarm.swarm.gateway.limits import AT_ONCE, Gate
from blockswarm.swarm.gateway.tokens import TokenLog
from blockswarm.swarm.generation import Piece
from blockswarm.swarm.options import ReadingOptions, WritingOptions
from blockswarm.swarm.report import CallReport, FinishReason

LOGGED_IN_LOOP = 256
"""Bytes whose log-probabilities are written in the loop itself, about 25 µs each; more of them, as an echoed prompt
has, are left to another thread."""


class Model(Protocol):
    """What is asked of `AsyncSwarmClient`."""

    def pieces(
        self, prompt: bytes, *, rows: bool, whole: bool, **options: Unpack[WritingOptions]
    ) -> AsyncGenerator[Piece, None]: ...

    async def logprobs(self, text: bytes, **options: Unpack[ReadingOptions]) -> Float32: ...


@dataclass(frozen=True)
class Step:
    """A part of one text."""

    index: int
    """Which of the choices."""
    text: str
    logprobs: dict[str, Any] | None
    tokens: int
    """Bytes that were generated in it."""
    finish_reason: FinishReason | None
    """Set in the last part."""
    report: CallReport
    """How its call is going."""


class Writer:
    """Carries out orders, one text a turn.

    Parameters
    ----------
    model : AsyncSwarmClient
        Who writes.
    gate : Gate
        Gives turns.
    """

    def __init__(self, model: Model, gate: Gate) -> None:
        self._model = model
        self._gate = gate

    def steps(self, order: Order, deadline: Deadline) -> AsyncGenerator[Step, None]:
        """The parts of all texts, each text's in order; texts may mingle. Close it to stop the writing.

        Where no stream is wanted each text is one part.
        """
        if len(order.jobs) == 1:
            return self._steps(order.jobs[0], order, deadline)
        return self._mingled(order, deadline)

    async def _mingled(self, order: Order, deadline: Deadline) -> AsyncGenerator[Step, None]:
        ready: asyncio.Queue[Step | None] = asyncio.Queue(maxsize=1)  # who is not read stops writing
        jobs = iter(order.jobs)

        async def work() -> None:
            for job in jobs:
                async with aclosing(self._steps(job, order, deadline)) as steps:
                    async for step in steps:
                        await ready.put(step)

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(order.jobs))):
                    group.create_task(work())

        working = asyncio.create_task(all_of_them())
        # A failure must wake the reader too, so the end is told by a callback and not by the task itself.
        ended = asyncio.create_task(_then(working, ready))
        try:
            while (step := await ready.get()) is not None:
                yield step
            try:
                await working
            except BaseExceptionGroup as errors:
                raise _first(errors) from None
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            ended.cancel()

    async def _steps(self, job: Job, order: Order, deadline: Deadline) -> AsyncGenerator[Step, None]:
        log = None if order.logprobs is None else TokenLog(order.logprobs)
        # Without echo characters come as `SwarmClient` gives them; with it they may begin in the prompt and end here.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        async with self._gate.turn():
            options: WritingOptions = {**job.options, "timeout": deadline}
            pieces = self._model.pieces(job.prompt, rows=log is not None, whole=not order.stream, **options)
            if order.stream:
                pieces = one_ahead(pieces)  # holders are asked for the next one while this one is sent
            begun = False
            async with aclosing(pieces):
                async for piece in pieces:
                    data, text, rows = piece.data, piece.text, piece.rows
                    known: Sequence[Float32 | None] = [] if rows is None else list(rows)
                    if order.echo:
                        if not begun:
                            data = job.prompt + data
                            if log is not None:
                                known = [*await self._prompt_rows(job.prompt, piece.report, deadline), *known]
                        text = decoder.decode(data, piece.last)
                    begun = True
                    yield Step(
                        index=job.index,
                        text=text,
                        logprobs=None if log is None else await _write(log, data, known),
                        tokens=len(piece.data),
                        finish_reason=piece.report.finish_reason if piece.last else None,
                        report=piece.report,
                    )

    async def _prompt_rows(self, prompt: bytes, report: CallReport, deadline: Deadline) -> list[Float32 | None]:
        """What each byte of the prompt could have been drawn from, by the states that write the text."""
        if len(prompt) < 2:
            return [None] * len(prompt)
        return [None, *await self._model.logprobs(prompt[:-1], pin=report.pin, timeout=deadline)]


async def _write(log: TokenLog, data: bytes, known: Sequence[Float32 | None]) -> dict[str, Any]:
    if len(data) <= LOGGED_IN_LOOP:
        return log.write(data, known)
    return await asyncio.to_thread(log.write, data, known)


async def _then(working: asyncio.Task[None], ready: asyncio.Queue[Step | None]) -> None:
    await asyncio.wait([working])
    await ready.put(None)


def _first(errors: BaseExceptionGroup) -> BaseException:
    """What went wrong first; the other texts were given up because of it."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
