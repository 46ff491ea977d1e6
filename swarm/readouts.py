"""From text to log-probabilities, block by block: the parallel readout and the paper's sweep, over a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from blockswarm.model.mixing import Readout, mix_log_probs
from blockswarm.swarm.answers import ROW_BYTES, Float32, check_hidden, check_rows
from blockswarm.swarm.chain import sweep_at_once
from blockswarm.swarm.chunks import Chunk, chunks
from blockswarm.swarm.counts.rows import with_counts
from blockswarm.swarm.errors import ClientError, NoHolderError
from blockswarm.swarm.holders import gather
from blockswarm.swarm.link import Reply
from blockswarm.swarm.messages import LogprobsRequest, SweepRequest
from blockswarm.swarm.narrow_z import narrowed, widened
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.race import drain
from blockswarm.swarm.remembered import Piece
from blockswarm.swarm.session import Question, Session

IN_FLIGHT = 4
"""Requests per block under way at a time for a long text: enough to keep two holders busy and their queues short."""


async def read(
    session: Session, chunk: Chunk, *, readout: Readout, seed: int, go_on: bool = False, narrow: bool = False
) -> Float32:
    """Log-probabilities of the rows of ``chunk``, float32 ``[rows, 256]``.

    Parameters
    ----------
    session, chunk : Session, Chunk
        Whom to ask, and what.
    readout, seed : str, int
        Which readout, and the seed of the sweep's noise.
    go_on : bool
        The chunk goes on from one asked for before in this session: holders compute only what is new. The rows may
        differ by float32 rounding from those of the whole window computed by itself, which is what False gives.
    narrow : bool
        Of a sweep: z goes from block to block at 8 bits a value, and the rows are those of such a z. Not with
        ``go_on``.
    """
    if readout == "sweep":
        return await _sweep(session, chunk, seed, go_on, narrow)
    return await with_counts(session, chunk, partial(_parallel, session, chunk, go_on))


async def read_all(
    session: Session,
    text: bytes,
    use: Callable[[int, Float32], None],
    *,
    rows: Sequence[tuple[int, int]],
    readout: Readout,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Rows of a text, several requests at a time; ``session.report.bytes`` counts them.

    Parameters
    ----------
    session : Session
        Whom to ask.
    text : bytes
        What to read.
    use : callable
        Called as ``use(first_row, rows)`` for every piece, in no particular order, in this task's thread.
    rows : sequence of (int, int)
        Which rows are wanted: ranges ``[begin, end)``, apart from each other.
    readout, seed : str, int
        Which readout, and the seed of the sweep's noise.
    progress : callable, optional
        Called as ``progress(rows done, rows in total)``.
    """
    total = sum(end - begin for begin, end in rows)
    context = session.core.manifest.model.context
    plan = chain.from_iterable(chunks(text, context, begin, end) for begin, end in rows)

    async def work(chunk: Chunk) -> None:
        use(chunk.first_row, await read(session, chunk, readout=readout, seed=seed))
        session.report.bytes += chunk.rows
        session.byte = max(session.byte, chunk.first_row + chunk.rows)
        if progress is not None:
            progress(session.report.bytes, total)

    await drain(plan, work, workers=IN_FLIGHT)


async def _parallel(session: Session, chunk: Chunk, go_on: bool) -> Float32:
    """Every block at once; the mean of their log-probabilities, renormalised."""
    while True:
        epoch = session.embedding_epoch
        session.waits += 1
        answers = await gather(
            partial(session.ask_or_skip, _logprobs_question(block, chunk, go_on)) for block in session.core.blocks
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


async def _sweep(session: Session, chunk: Chunk, seed: int, go_on: bool, narrow: bool) -> Float32:
    """z travels through the blocks in order, from holder to holder or else through here; the last one's rows."""
    at_once = await sweep_at_once(session, chunk, seed, go_on=go_on, narrow=narrow)
    if isinstance(at_once, np.ndarray):
        return at_once
    while True:
        epoch = session.embedding_epoch
        z: bytes = b""
        for block in session.core.blocks:
            session.waits += 1
            answer = await session.ask(_sweep_question(session, block, chunk, seed, z))
            if session.embedding_epoch != epoch:
                break
            if block == session.core.blocks[-1]:
                return answer
            dim = session.core.manifest.model.dim
            z = bytes(widened(narrowed(answer), chunk.positions, dim)) if narrow else answer.tobytes()
        else:
            raise ClientError("the sweep ended without log-probabilities")


def _logprobs_question(block: int, chunk: Chunk, go_on: bool) -> Question[Float32]:
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
        work=chunk.rows if go_on else chunk.positions,
        piece=Piece.of(chunk) if go_on else None,
    )


def _sweep_question(session: Session, block: int, chunk: Chunk, seed: int, z: bytes) -> Question[Float32]:
    """One Euler step; the answer is the next z, float32 ``[positions, dim]``, or from the last block the rows."""
    last = block == session.core.blocks[-1]
    dim = session.core.manifest.model.dim

    def body(pin: Pin) -> tuple[Mapping[str, Any], bytes]:
        state = pin.blocks[block]
        request = SweepRequest(block, state.digest, pin.embedding.digest, chunk.windows, chunk.starts, chunk.take, seed)
        return request.to_body(), z

    def check(reply: Reply) -> Float32:
        return check_rows(reply, chunk.rows) if last else check_hidden(reply, chunk.positions, dim)

    return Question(
        block=block,
        method="sweep",
        body=body,
        check=check,
        max_blob=chunk.rows * ROW_BYTES if last else chunk.positions * dim * 4,
        work=chunk.positions,
    )
