"""A sweep in one traversal: the holders of all blocks are asked at once, z goes from one to the next, the last answers.

It is the quick way, not the sure one: whatever goes wrong, the caller sweeps step by step instead, where every holder
can be exchanged by itself.
"""

from __future__ import annotations

import secrets

import trio

from blockswarm.dht.errors import RpcError
from blockswarm.swarm.answers import ROW_BYTES, Float32, check_rows
from blockswarm.swarm.chain_messages import TOKEN_BYTES, ChainRequest, Draw
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.errors import UntrustedAnswerError
from blockswarm.swarm.link import Reply, short, words
from blockswarm.swarm.messages import SweepRequest
from blockswarm.swarm.remembered import Piece
from blockswarm.swarm.session import Session
from blockswarm.swarm.session_messages import SessionRequest

AGAIN_SECONDS = 10.0
"""So long after a chain that broke sweeps go step by step."""

ANOTHERS_FAULT = ("late", "next-failed", "unknown-method", "unknown-session")
"""What a holder says that has no part in what went wrong, or is of an older version."""


async def sweep_at_once(
    session: Session, chunk: Chunk, seed: int, draw: Draw | None = None, *, go_on: bool = False, narrow: bool = False
) -> Float32 | bytes | None:
    """The rows of ``chunk``, float32 ``[rows, 256]``, or the bytes drawn from them; None when it did not work.

    Parameters
    ----------
    session : Session
        Whom to ask; its states are those pinned when the sweep begins.
    chunk : Chunk
        Windows, and which rows of theirs are wanted.
    seed : int
        Of the noise that the sweep starts from, and of the draw.
    draw : Draw, optional
        Have the last holder draw the bytes: 1 byte of answer instead of 1 KiB for each.
    go_on : bool
        The chunk goes on from one asked for before in this session: holders compute, and hand on, only what is new.
    narrow : bool
        Have z travel at 8 bits a value. Not with ``go_on``.
    """
    blocks = session.core.blocks
    holders = [session.first(block) for block in blocks]
    if None in holders or trio.current_time() < session.chains_from:
        return None
    # z of a byte is another one in each window that holds it, so a session goes on within one window.
    piece = Piece.of(chunk, seed) if go_on and len(chunk.windows) == 1 else None
    for _ in range(2):  # a second time where a holder has lost the text: then it is told all of it
        chain = _Chain(session, chunk, seed, draw, [holder for holder in holders if holder is not None], piece, narrow)
        session.waits += 1
        with trio.move_on_after(chain.patience) as scope:
            await chain.run()
        if not chain.forgotten:
            break
    if scope.cancelled_caught:
        chain.why = f"no answer in {chain.patience:.1f} s"
    if chain.answer is None:
        session.chains_from = trio.current_time() + AGAIN_SECONDS
        if not chain.older:
            session.core.notify("chain", f"the sweep goes step by step for a while: {chain.why}", byte=session.byte)
    return chain.answer


class _Chain:
    """One traversal under way."""

    def __init__(
        self,
        session: Session,
        chunk: Chunk,
        seed: int,
        draw: Draw | None,
        holders: list[str],
        piece: Piece | None,
        narrow: bool,
    ) -> None:
        self.answer: Float32 | bytes | None = None
        self.why = ""
        self.older = False
        """Whether a holder does not know this way at all."""
        self.forgotten = False
        """Whether a holder does not have the text that it was believed to have."""
        router, work = session.core.router, chunk.positions
        self.patience = sum(router.patience(holder, work) for holder in holders)
        self._session, self._chunk, self._draw, self._holders = session, chunk, draw, holders
        self._pin = pin = session.pin
        self._piece, self._narrow = piece, narrow
        remembered = session.remembered
        # The same for all: each block needs z of what is new to it from the one before.
        known = [remembered.known(piece, peer, block, pin) for block, peer in enumerate(holders)] if piece else []
        self._known = min(known, default=0)
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._seed = seed

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for block, holder in enumerate(self._holders):
                nursery.start_soon(self._ask, block, holder, nursery.cancel_scope)

    async def _ask(self, block: int, holder: str, everything: trio.CancelScope) -> None:
        core, last = self._session.core, block == len(self._holders) - 1
        core.stats.requests += 1
        core.router.started(holder)
        try:
            reply = await core.link.call(
                holder,
                "chain",
                self._request(block).to_body(),
                run=core.manifest.digest,
                max_blob=self._chunk.rows * (1 if self._draw else ROW_BYTES) if last else 0,
                timeout=self.patience,
            )
            if last:
                self.answer = self._checked(reply)
                core.stats.answers += 1
                self._remember()
                everything.cancel()  # the others have done their part, their answers only say so
        except (RpcError, UntrustedAnswerError) as error:
            if isinstance(error, RpcError) and error.code == "unknown-session" and self._known:
                self.forgotten = True
            self._forget()
            if not self.why:
                self.why = f"block {block}, {short(holder)}: {words(error)}"
            self.older |= isinstance(error, RpcError) and error.code == "unknown-method"
            if isinstance(error, UntrustedAnswerError) or error.code not in ANOTHERS_FAULT:
                self._session.failed(block, holder, self._pin, error)
            everything.cancel()
        finally:
            core.router.ended(holder)

    def _request(self, block: int) -> ChainRequest:
        last, chunk, pin = block == len(self._holders) - 1, self._chunk, self._pin
        step: SweepRequest | SessionRequest
        if self._piece is not None:
            step = self._session.remembered.request(self._piece, block, pin, self._known)
        else:
            step = SweepRequest(
                block,
                pin.blocks[block].digest,
                pin.embedding.digest,
                chunk.windows,
                chunk.starts,
                chunk.take,
                self._seed,
            )
        onward, draw = (None, self._draw) if last else (self._holders[block + 1], None)
        return ChainRequest(step, self._token, onward, draw, self._narrow)

    def _remember(self) -> None:
        if self._piece is not None:
            for block, holder in enumerate(self._holders):
                self._session.remembered.told(self._piece, holder, block, self._pin)

    def _forget(self) -> None:
        for block, holder in enumerate(self._holders):
            self._session.remembered.forget(holder, block, self._pin)

    def _checked(self, reply: Reply) -> Float32 | bytes:
        if self._draw is None:
            return check_rows(reply, self._chunk.rows)
        if len(reply.blob) != self._chunk.rows:
            raise UntrustedAnswerError(f"{len(reply.blob)} bytes drawn instead of {self._chunk.rows}")
        return bytes(reply.blob)
