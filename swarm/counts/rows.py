"""The counts in a readout: their rows, computed here or asked of a holder, mixed with those of the blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio

from blockswarm.model.layout import COUNTS
from blockswarm.model.mixing import mix_counts, without_veto
from blockswarm.swarm.answers import ROW_BYTES, Float32, check_rows
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.counts.files import rows_of
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.holders import gather
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.session import Question, Session

ROWS_IN_LOOP = 64
"""Rows computed in the client's loop, about 20 µs each; more of them are left to another thread."""


async def with_counts(session: Session, chunk: Chunk, blocks: Callable[[], Awaitable[Float32]]) -> Float32:
    """What the blocks say of ``chunk``, and the run's counts beside it, float32 ``[rows, 256]``.

    Parameters
    ----------
    session : Session
        Whom to ask.
    chunk : Chunk
        The rows wanted.
    blocks : callable
        Asks the blocks; at the same time as the counts are asked for.
    """
    counts = session.core.manifest.counts
    if counts is None:
        return await blocks()
    answers = await gather([blocks, partial(_rows, session, chunk)])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    known, rows = answers
    return known if rows is None else mix_counts(known, rows, counts.weight)


async def _rows(session: Session, chunk: Chunk) -> Float32 | None:
    """The rows of the counts; None only in a best-effort session that goes on without them."""
    manifest, local = session.core.manifest, session.core.counts
    assert manifest.counts is not None  # asked before
    request = CountsRequest.of(manifest.genesis_digest(COUNTS), chunk.windows, chunk.take, manifest.counts.order)
    if local is None:
        return await session.ask_or_skip(_question(request))
    work = partial(rows_of, local, request)
    return without_veto(work() if request.rows <= ROWS_IN_LOOP else await trio.to_thread.run_sync(work))


def _question(request: CountsRequest) -> Question[Float32]:
    def body(pin: Pin) -> tuple[Mapping[str, Any], bytes]:
        del pin  # the manifest names the counts, once and for all
        return request.to_body(), b""

    return Question(
        block=COUNTS,
        method=METHOD,
        body=body,
        check=partial(check_rows, rows=request.rows),
        max_blob=request.rows * ROW_BYTES,
        work=request.rows,
    )
