"""How much a peer at the other end of a connection can make this process keep.

py-libp2p keeps whatever comes: a greeting of any length, and bytes beyond the windows that it granted.
"""

from __future__ import annotations

from typing import Any

import trio

PIECE = 64 * 1024

MAX_UNREAD = 64 << 20
"""Bytes of a connection that nobody has read yet. Who keeps to yamux's windows is far from it: they are 16 MiB a stream
at most, and open only as fast as it is read."""


class Short:
    """A connection or stream of which only so many bytes are read, piece by piece.

    Attributes
    ----------
    left : float
        Bytes that may still come; infinite once a negotiation is over.
    """

    def __init__(self, wire: Any, left: float) -> None:
        self._wire = wire
        self.left = left

    async def read(self, count: int | None = None) -> bytes:
        """At most ``count`` bytes; `ConnectionError` when the peer says more than it may."""
        data: bytes = await self._wire.read(PIECE if count is None else min(count, PIECE))
        self.left -= len(data)
        if self.left < 0:
            raise ConnectionError("the peer says too much before it speaks our protocol")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)


class FloodError(trio.TooSlowError):
    """A peer sends on although it may not. Of this kind because on such an error yamux closes the connection."""


class Buffers(dict[int, bytearray]):
    """Where a multiplexer keeps what its streams have received and nobody has read, by stream number."""

    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        super().__setitem__(stream_id, _Buffer(self, buffer))


class _Buffer(bytearray):
    def __init__(self, buffers: Buffers, begin: bytearray) -> None:
        super().__init__(begin)
        self._buffers = buffers

    def extend(self, data: Any) -> None:
        if sum(map(len, self._buffers.values())) + len(data) > MAX_UNREAD:
            raise FloodError
        super().extend(data)
