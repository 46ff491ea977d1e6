"""One encrypted, multiplexed libp2p connection to one peer: TCP + noise + yamux, dialled only, never listening.

py-libp2p's full host would also identify itself, keep a peer store and manage addresses; a client that only asks
needs none of it, so the pieces are put together here by hand. libp2p is imported when the first connection is dialled:
importing it takes half a second and 60 MB, and it must never meet hivemind in one process.
"""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass
from typing import Any

import trio

from blockswarm.dht.errors import RpcError
from blockswarm.swarm.errors import ClientError
from blockswarm.swarm.restraint import Buffers, Short

WRITE_PATIENCE = 10.0
"""Seconds one write to the socket may take before the connection is given up."""

CLOSE_PATIENCE = 0.5
"""Seconds for a polite end (stream reset, go-away) before the socket is simply closed."""

READ_SIZE = 64 * 1024

GREETING_BYTES = 256 * 1024
"""What a peer may say until the connection stands, its noise messages included."""

MULTISTREAM = "/multistream/1.0.0"
"""What both sides of a new stream say first (libp2p's multistream-select)."""

NOT_SPOKEN = b"na\n"
"""What multistream-select answers to a protocol that is not spoken."""


@dataclass(frozen=True)
class Libp2p:
    """The few names of py-libp2p in use, bound on first use by :func:`load`."""

    upgrader: Any
    raw_connection: Any
    tcp_stream: Any
    peer_id: Any
    yamux: Any


def load() -> Libp2p:
    """Import py-libp2p, quiet its logging and make an ephemeral Ed25519 identity for this process's connections.

    Raises
    ------
    ClientError
        When this process cannot load it.
    """
    if "hivemind" in sys.modules:
        raise ClientError(
            "this process has imported hivemind, next to which py-libp2p cannot load (both register the same protobuf "
            "names): run the client in a process of its own"
        )
    try:
        return _load()
    except ImportError as error:
        raise ClientError(f"py-libp2p cannot be imported ({error}): pip install 'libp2p>=0.8.1'") from error


def _load() -> Libp2p:
    from libp2p.crypto.ed25519 import create_new_key_pair as new_identity
    from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key
    from libp2p.io.trio import TrioTCPStream
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
    from libp2p.security.noise.transport import Transport
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
    from libp2p.stream_muxer.yamux.yamux import Yamux
    from libp2p.transport.upgrader import TransportUpgrader

    # A peer that vanishes is this client's daily bread and reported by its events; libp2p would print it as an error.
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    noise = Transport(new_identity(), new_noise_key().private_key)
    return Libp2p(
        upgrader=TransportUpgrader({NOISE: noise}, {YAMUX: Yamux}),
        raw_connection=RawConnection,
        tcp_stream=TrioTCPStream,
        peer_id=ID,
        yamux=Yamux,
    )


class _WholeWrites:
    """A secured connection whose writes are never cut in the middle.

    Noise numbers its messages: a write cancelled between encryption and the socket would leave a gap, and the peer
    would drop the connection with all its streams. So a write runs to its end even when its task is cancelled, within
    ``WRITE_PATIENCE``.
    """

    def __init__(self, secured: Any) -> None:
        self._secured = secured

    async def write(self, data: bytes) -> None:
        with shielded(WRITE_PATIENCE) as scope:
            await self._secured.write(data)
        if scope.cancelled_caught:
            await self._secured.close()
            raise ConnectionError(f"the peer took no bytes for {WRITE_PATIENCE:g} s")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._secured, name)


class Connection:
    """An open connection; streams on it are opened with :meth:`open`.

    Parameters
    ----------
    peer_id : str
        The peer at the other end, proven by the noise handshake.
    muxer : Yamux
        The started multiplexer.
    """

    def __init__(self, peer_id: str, muxer: Any) -> None:
        self.peer_id = peer_id
        self._muxer = muxer

    @property
    def alive(self) -> bool:
        """Whether streams can still be opened."""
        return not self._muxer.event_shutting_down.is_set()

    async def open(self, protocol: str) -> Stream:
        """Open a stream speaking ``protocol``; the caller bounds the wait.

        Nobody is waited for: what is written first goes out together with the name of the protocol, as go-libp2p does
        it, which saves two round trips. Whether the peer speaks it shows in the first read.
        """
        return Stream(await self._muxer.open_stream(), protocol)

    async def close(self) -> None:
        """End the connection and every stream on it, within ``CLOSE_PATIENCE`` seconds."""
        with shielded(CLOSE_PATIENCE):
            await self._muxer.close()
        await _quietly(self._muxer.secured_conn.close)


class Stream:
    """A byte stream with exact reads.

    Parameters
    ----------
    raw : IMuxedStream
        Just opened.
    protocol : str, optional
        What to say first that it speaks, and expect to be told; by default it speaks it already.
    """

    def __init__(self, raw: Any, protocol: str | None = None) -> None:
        self._raw = raw
        self._left = bytearray()
        self._unsaid = b"" if protocol is None else _said(MULTISTREAM) + _said(protocol)
        self._expected = [] if protocol is None else [MULTISTREAM, protocol]

    @property
    def agreed(self) -> bool:
        """Whether the peer has said that it speaks the protocol."""
        return not self._expected

    async def write(self, data: bytes) -> None:
        """Send all of ``data``."""
        unsaid, self._unsaid = self._unsaid, b""
        await self._raw.write(unsaid + data)

    async def read_exactly(self, count: int) -> bytes:
        """Receive ``count`` bytes.

        Raises
        ------
        EOFError
            If the stream ends before.
        ConnectionError
            If the peer does not speak the protocol.
        """
        while self._expected:
            await self._agree(self._expected[0])
            del self._expected[0]
        return await self._read(count)

    async def _agree(self, expected: str) -> None:
        (length,) = await self._read(1)
        if length >= 0x80:  # the first of several bytes of a length: no protocol of ours is that long
            raise ConnectionError("the peer says too much before it speaks our protocol")
        told = await self._read(length)
        if told == NOT_SPOKEN:
            raise ConnectionError("the peer does not speak our protocol")
        if told != f"{expected}\n".encode():
            raise ConnectionError(f"the peer says {told[:40]!r} instead of {expected}")

    async def _read(self, count: int) -> bytes:
        buffer = self._left
        while len(buffer) < count:
            piece = await self._raw.read(READ_SIZE)
            if not piece:
                raise EOFError(f"the stream ended after {len(buffer)} of {count} bytes")
            buffer += piece
        taken = bytes(memoryview(buffer)[:count])
        del buffer[:count]
        return taken

    async def reset(self) -> None:
        """Throw the stream away, also while being cancelled."""
        await _quietly(self._raw.reset)


def _said(name: str) -> bytes:
    """A message of multistream-select; its length, below 128, is one byte."""
    return bytes([len(name) + 1]) + f"{name}\n".encode()


async def dial(libp2p: Libp2p, host: str, port: int, peer_id: str, nursery: Any) -> Connection:
    """Connect to ``peer_id`` at ``host:port``; the caller bounds the wait.

    Parameters
    ----------
    libp2p : Libp2p
        From :func:`load`.
    host, port : str, int
        Where to dial; a name is resolved.
    peer_id : str
        Who must live there; the handshake fails for anybody else.
    nursery : trio.Nursery
        Where the connection's own tasks live; they end with the connection.

    Raises
    ------
    RpcError
        Code ``unreachable``, with the reason: refused, no route, another peer lives there, not libp2p.
    """
    where = f"{host}:{port}"
    try:
        tcp = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise RpcError("unreachable", f"{where}: {reason(error)}") from error
    try:
        peer = libp2p.peer_id.from_string(peer_id)
        wire = Short(libp2p.tcp_stream(tcp), GREETING_BYTES)
        raw = libp2p.raw_connection(wire, True)
        secured = await libp2p.upgrader.upgrade_security(raw, True, peer)
        muxer = await libp2p.upgrader.upgrade_connection(secured, peer)
        wire.left = math.inf
        muxer.secured_conn = _WholeWrites(secured)
        muxer.stream_buffers = Buffers()
        nursery.start_soon(_tend, muxer)
        await muxer.event_started.wait()
    except Exception as error:
        await trio.aclose_forcefully(tcp)
        raise RpcError("unreachable", f"{where}: {reason(error)}") from error
    except BaseException:
        await trio.aclose_forcefully(tcp)
        raise
    return Connection(peer_id, muxer)


def shielded(seconds: float) -> Any:
    """A cancel scope for tidying up: nothing outside cancels it, and it ends by itself after ``seconds``."""
    return trio.CancelScope(shield=True, deadline=trio.current_time() + seconds)


async def _tend(muxer: Any) -> None:
    """Run the multiplexer, turning away the streams the peer opens towards us (identify and the like)."""

    async def turn_away() -> None:
        try:
            while True:
                await (await muxer.accept_stream()).reset()
        except Exception:
            return  # the connection is gone, and whoever uses it sees that for himself

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_away)
            await muxer.start()
            nursery.cancel_scope.cancel()
    except* Exception:
        pass  # a broken connection shows in its streams; it must not take the other connections along
    finally:
        muxer.event_shutting_down.set()
        await _quietly(muxer.secured_conn.close)  # also when the whole client is being cancelled


async def _quietly(close: Any) -> None:
    """Close something that may be broken already, without waiting long and without complaint."""
    with shielded(CLOSE_PATIENCE):
        try:
            await close()
        except Exception:
            return


def reason(error: BaseException) -> str:
    """The innermost cause of ``error`` in a few words."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    text = str(error) or type(error).__name__
    for sign, words in _PLAIN.items():
        if sign in text:
            return words
    return text.splitlines()[0][:200]


_PLAIN = {
    "Connection refused": "connection refused",
    "does not correspond to the received pubkey": "another peer lives there",
    "No route to host": "no route to host",
    "Network is unreachable": "network unreachable",
}
"""What libraries say in many words, in few."""
