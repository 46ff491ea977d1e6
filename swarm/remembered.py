"""What the holders of a session know of its text: so much need not be sent again.

A holder may forget at any time, or have been asked something whose answer never came. So every request proves with a
digest that both sides mean the same bytes, and where they do not, the window is sent from its beginning. A holder that
knows no sessions is asked for whole windows.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from blockswarm.dht.errors import RpcError
from blockswarm.model.windows import shared
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.link import Reply
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.session_messages import SESSION_BYTES, SessionRequest, text_check

Call = Callable[[SessionRequest], Awaitable[Reply]]
"""Sends a request to a holder."""


@dataclass(frozen=True)
class Piece:
    """Rows of a text, and the bytes that they depend on."""

    text: bytes
    """From the beginning of the first row's window to the text's end."""
    start: int
    """Absolute position of its first byte."""
    first: int
    """Absolute index of the first row wanted; the last one is that of the last byte."""
    seed: int | None = None
    """Of a sweep's noise."""

    @classmethod
    def of(cls, chunk: Chunk, seed: int | None = None) -> Piece:
        """The rows of ``chunk``."""
        return cls(tail(chunk), chunk.starts[0], chunk.first_row, seed)


def tail(chunk: Chunk) -> bytes:
    """The bytes that the windows of ``chunk`` cover, from the beginning of the first to the end of the last."""
    text = chunk.windows[0]
    for window, start in zip(chunk.windows[1:], chunk.starts[1:], strict=True):
        text = text[: start - chunk.starts[0]] + window
    return text


class Remembered:
    """What was told to the holders in one session, holder by holder."""

    def __init__(self) -> None:
        self._name = os.urandom(SESSION_BYTES)
        self._told: dict[tuple[str, bytes, bytes], tuple[int, bytes]] = {}

    async def ask(self, piece: Piece, peer: str, block: int, pin: Pin, call: Call) -> Reply:
        """The answer of ``peer``, which is told no more than it lacks.

        Raises
        ------
        RpcError
            As ``call`` does; ``unknown-session`` only from a holder that says so of a window it was given in full.
        """
        while True:
            known = self.known(piece, peer, block, pin)
            try:
                reply = await call(self.request(piece, block, pin, known))
            except RpcError as error:
                self.forget(peer, block, pin)
                if error.code != "unknown-session" or not known:
                    raise
            else:
                self.told(piece, peer, block, pin)
                return reply

    def request(self, piece: Piece, block: int, pin: Pin, known: int) -> SessionRequest:
        """Ask for a piece of whose bytes the first ``known`` need not be sent."""
        return SessionRequest(
            session=self._name,
            block=block,
            digest=pin.blocks[block].digest,
            embedding_digest=pin.embedding.digest,
            at=piece.start + known,
            new=piece.text[known:],
            first=piece.first,
            check=text_check(piece.text[:known]),
            seed=piece.seed,
        )

    def known(self, piece: Piece, peer: str, block: int, pin: Pin) -> int:
        """How many bytes of a piece the holder has; in a sweep none that a row is wanted of."""
        start, told = self._told.get(_key(peer, block, pin), (0, b""))
        if start > piece.start:
            return 0
        most = len(piece.text) - 1 if piece.seed is None else piece.first - piece.start
        return shared(piece.text[:most], told[piece.start - start :])

    def told(self, piece: Piece, peer: str, block: int, pin: Pin) -> None:
        """The holder has answered, so it has the piece."""
        self._told[_key(peer, block, pin)] = piece.start, piece.text

    def forget(self, peer: str, block: int, pin: Pin) -> None:
        """Count on nothing that the holder was told."""
        self._told.pop(_key(peer, block, pin), None)


def _key(peer: str, block: int, pin: Pin) -> tuple[str, bytes, bytes]:
    return peer, pin.blocks[block].digest, pin.embedding.digest
