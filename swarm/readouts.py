"""From text to log-probabilities, block by block: the parallel readout and the paper's sweep, over a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import trio

from blockswarm.model.mixing import mix_log_probs
from blockswarm.model.windows import plan_windows, window_start
from blockswarm.swarm.answers import ROW_BYTES, Float32, check_hidden, check_rows
from blockswarm.swarm.errors import ClientError, NoHolderError
from blockswarm.swarm.holders import gather
from blockswarm.swarm.messages import MAX_POSITIONS, MAX_WINDOWS, LogprobsRequest, SweepRequest
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.session import Question, Session

Readout = Literal["parallel", "sweep"]

IN_FLIGHT = 4
"""Requests per block under way at a time for a long text: enough to keep two holders busy and their queues short."""

CHUNK_POSITIONS = min(1024, MAX_POSITIONS)
"""Bytes of context in one request for a long text: a holder that trains meanwhile answers it in well under a second."""


@dataclass(frozen=True)
class Chunk:
    """Windows of one text that travel in one request."""

    first_row: int
    """Absolute index of the first row of the answer; the rows are contiguous."""
    windows: tuple[bytes, ...]
    starts: tuple[int, ...]
    take: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Bytes of context to be computed."""
        return sum(map(len, self.windows))

    @property
    def rows(self) -> int:
        """Rows of log-probabilities in the answer."""
        return self.positions - sum(self.take)


def last_row(text: bytes | bytearray, context: int) -> Chunk:
    """The window that predicts the byte after ``text``."""
    position = len(text) - 1
    start = window_start(position, context)
    return Chunk(position, (bytes(text[start:]),), (start,), (position - start,))


def chunks(text: bytes, context: int) -> Iterator[Chunk]:
    """All rows of ``text`` in requests of at most 64 windows and ``CHUNK_POSITIONS`` (one longer window goes alone)."""
    batch: list[tuple[int, int, int]] = []
    positions = 0

    def cut() -> Chunk:
        return Chunk(
            first_row=batch[0][0] + batch[0][2],
            windows=tuple(text[start:stop] for start, stop, _ in batch),
            starts=tuple(start for start, _, _ in batch),
            take=tuple(take for _, _, take in batch),
        )

    for start, stop, take in plan_windows(len(text), context):
        if batch and (len(batch) == MAX_WINDOWS or positions + stop - start > CHUNK_POSITIONS):
            yield cut()
            batch, positions = [], 0
        batch.append((start, stop, take))
        positions += stop - start
    if batch:
        yield cut()


async def read(session: Session, chunk: Chunk, *, readout: Readout, seed: int) -> Float32:
    """Log-probabilities of the rows of ``chunk``, float32 ``[rows, 256]``."""
    if readout == "sweep":
        return await _sweep(session, chunk, seed)
    return await _parallel(session, chunk)


async def read_all(
    session: Session,
    text: bytes,
    use: Callable[[int, Float32], None],
    *,
    readout: Readout,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Rows of a whole text, several requests at a time.

    Parameters
    ----------
    session : Session
        Whom to ask.
    text : bytes
        What to read.
    use : callable
        Called as ``use(first_row, rows)`` for every piece, in no particular order, in this task's thread.
    readout, seed : str, int
        Which readout, and the seed of the sweep's noise.
    progress : callable, optional
        Called as ``progress(rows done, rows in total)``.
    """
    done = 0
    failed: list[Exception] = []
    plan = chunks(text, session.core.manifest.model.context)

    async def work() -> None:
        nonlocal done
        for chunk in plan:  # the workers share one iterator
            try:
                rows = await read(session, chunk, readout=readout, seed=seed)
            except Exception as error:
                failed.append(error)
                nursery.cancel_scope.cancel()
                return
            use(chunk.first_row, rows)
            done += chunk.rows
            session.byte = max(session.byte, chunk.first_row + chunk.rows)
            if progress is not None:
                progress(done, len(text))

    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(work)
    if failed:
        raise failed[0]


async def _parallel(session: Session, chunk: Chunk) -> Float32:
    """Every block at once; the mean of their log-probabilities, renormalised."""
    while True:
        epoch = session.embedding_epoch
        answers = await gather(
            partial(session.ask_or_skip, _logprobs_question(block, chunk)) for block in session.core.blocks
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        if session.embedding_epoch != epoch:
            continue  # the embedding was exchanged in between: take all rows under the new one
        present = [answer for answer in answers if answer is not None]
        if not present:
            raise NoHolderError(0, "no block answers at all: no live holder of any block")
        return mix_log_probs(present)


async def _sweep(session: Session, chunk: Chunk, seed: int) -> Float32:
    """z travels through the blocks in order; the last one's log-probabilities."""
    while True:
        epoch = session.embedding_epoch
        z = b""
        for block in session.core.blocks:
            answer = await session.ask(_sweep_question(session, block, chunk, seed, z))
            if session.embedding_epoch != epoch:
                break
            if isinstance(answer, np.ndarray):
                return answer
            z = answer
        else:
            raise ClientError("the sweep ended without log-probabilities")


def _logprobs_question(block: int, chunk: Chunk) -> Question[Float32]:
    def body(pin: Pin) -> tuple[Mapping[str, Any], bytes]:
        state = pin.blocks[block]
        request = LogprobsRequest(block, state.digest, pin.embedding.digest, chunk.windows, chunk.take)
        return request.to_body(), b""

    return Question(
        block=block,
        method="logprobs",
        body=body,
        check=partial(check_rows, rows=chunk.rows),
        max_blob=chunk.rows * ROW_BYTES,
        work=chunk.positions,
    )


def _sweep_question(session: Session, block: int, chunk: Chunk, seed: int, z: bytes) -> Question[Float32 | bytes]:
    """One Euler step; the answer is the next z as bytes or, from the last block, the rows."""
    last = block == session.core.blocks[-1]
    dim = session.core.manifest.model.dim

    def body(pin: Pin) -> tuple[Mapping[str, Any], bytes]:
        state = pin.blocks[block]
        request = SweepRequest(block, state.digest, pin.embedding.digest, chunk.windows, chunk.starts, chunk.take, seed)
        return request.to_body(), z

    def check(reply: Any) -> Float32 | bytes:
        if last:
            return check_rows(reply, chunk.rows)
        return check_hidden(reply, chunk.positions, dim).tobytes()

    return Question(
        block=block,
        method="sweep",
        body=body,
        check=check,
        max_blob=chunk.rows * ROW_BYTES if last else chunk.positions * dim * 4,
        work=chunk.positions,
    )
