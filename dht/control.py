"""Requests to p2pd over its control socket, each bounded and leaving nothing open behind it.

hivemind's own bindings keep the connection open when a request fails or is cancelled, which a peer that dials absent
peers for weeks cannot afford. The messages are hivemind's (``p2pd.proto``): a varint length, then the protobuf.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import base58

from blockswarm.dht.errors import HostError
from blockswarm.dht.hivemind_parts import Multiaddr, p2pd_pb2
from blockswarm.dht.peer_id import peer_id_bytes

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 4 << 20
STREAM_BUFFER = 512 << 10
"""Bytes a stream buffers before it stops reading; larger moves big blobs in fewer steps."""

StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""``handler(peer_id, reader, writer)``: the peer id was proven by the connection's handshake."""


class ControlError(HostError):
    """p2pd refused a request or could not be asked; the message is the reason in a few words."""


class Control:
    """Client of one p2pd.

    Parameters
    ----------
    path : Path
        Its control socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def identify(self) -> tuple[str, list[str]]:
        """``(peer id, addresses)`` of the daemon itself; addresses come without ``/p2p``."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        addrs = [text for raw in response.identify.addrs if (text := _address_text(raw))]
        return _peer_text(response.identify.id), addrs

    async def connect(self, peer_id: str, addrs: Sequence[str]) -> None:
        """Connect to a peer, over ``addrs`` (without ``/p2p``) or what the daemon can find out; at once if connected.

        Raises
        ------
        ControlError
            ``refused``, ``timed out``, ``wrong peer id …`` and the like.
        """
        request = p2pd_pb2.ConnectRequest(peer=peer_id_bytes(peer_id), addrs=[Multiaddr(a).to_bytes() for a in addrs])
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request))

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections to a peer."""
        request = p2pd_pb2.DisconnectRequest(peer=peer_id_bytes(peer_id))
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=request))

    async def list_peers(self) -> dict[str, list[str]]:
        """Peers connected now, with the remote address of each connection."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        peers: dict[str, list[str]] = {}
        for info in response.peers:
            peers.setdefault(_peer_text(info.id), []).extend(filter(None, map(_address_text, info.addrs)))
        return peers

    @contextlib.asynccontextmanager
    async def open_stream(
        self, peer_id: str, protocol: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A stream to ``peer_id``, closed on leaving whatever happens. Opening is the caller's to bound in time."""
        async with self._connection() as (reader, writer):
            request = p2pd_pb2.StreamOpenRequest(peer=peer_id_bytes(peer_id), proto=[protocol])
            _write(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request))
            await _response(reader)
            try:
                yield reader, writer
            except BaseException:
                # What is still buffered is of no use any more, and must not wait for a peer that does not read.
                writer.transport.abort()
                raise

    async def accept_streams(self, protocol: str, path: Path, handler: StreamHandler) -> StreamServer:
        """Have the daemon pass inbound streams of ``protocol`` to ``handler``, through a unix socket at ``path``."""
        server = StreamServer(handler)
        await server.listen(path)
        request = p2pd_pb2.StreamHandlerRequest(
            addr=Multiaddr(f"/unix{path}").to_bytes(), proto=[protocol], balanced=False
        )
        try:
            await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=request))
        except BaseException:
            server.close()
            raise
        return server

    async def _ask(self, request: Any) -> Any:
        async with self._connection() as (reader, writer):
            _write(writer, request)
            return await _response(reader)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=STREAM_BUFFER)
        except OSError:
            raise ControlError("p2pd does not answer on its control socket") from None
        try:
            yield reader, writer
        finally:
            writer.close()


class StreamServer:
    """Takes inbound streams from the daemon until `close`."""

    def __init__(self, handler: StreamHandler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> None:
        """Start listening on the unix socket ``path``."""
        self._server = await asyncio.start_unix_server(self._accept, path, limit=STREAM_BUFFER)

    def close(self) -> None:
        """Stop listening and cancel the streams in progress."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            info = p2pd_pb2.StreamInfo()
            async with asyncio.timeout(5):
                await _read(reader, info)
            await self._handler(_peer_text(info.peer), reader, writer)
        except (OSError, EOFError, TimeoutError, ControlError):
            logger.debug("an inbound stream ended before it began")
        except asyncio.CancelledError:
            # Only `close` cancels these tasks, and nobody awaits them.
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)


def _write(writer: asyncio.StreamWriter, message: Any) -> None:
    data = message.SerializeToString()
    size, prefix = len(data), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    writer.write(bytes(prefix) + data)


async def _read(reader: asyncio.StreamReader, message: Any) -> None:
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
        if shift > 28:
            raise ControlError("p2pd sent a message without end")
    if size > _MAX_MESSAGE:
        raise ControlError(f"p2pd sent a message of {size} bytes")
    message.ParseFromString(await reader.readexactly(size))


async def _response(reader: asyncio.StreamReader) -> Any:
    response = p2pd_pb2.Response()
    try:
        await _read(reader, response)
    except (OSError, EOFError):
        raise ControlError("p2pd closed its control socket") from None
    if response.type == p2pd_pb2.Response.ERROR:
        raise ControlError(reason_of(response.error.msg))
    return response


_REASONS = (
    ("peer id mismatch", "wrong peer id"),
    ("connection refused", "refused"),
    ("dial to self", "it is this peer itself"),
    ("no such host", "DNS name unknown"),
    ("no route to host", "no route to it"),
    ("network is unreachable", "no route to it"),
    ("protocols not supported", "it does not speak this protocol"),
    ("failed to negotiate protocol", "it does not speak this protocol"),
    ("protocol not supported", "it does not speak this protocol"),
    ("i/o timeout", "timed out"),
    ("deadline exceeded", "timed out"),
    ("backoff", "failed a moment ago"),
    ("no addresses", "no known address"),
    ("routing: not found", "no known address"),
    ("failed to find any peer", "no known address"),
    ("no good addresses", "no usable address"),
    ("connection reset", "connection reset"),
    ("stream reset", "connection reset"),
)


def reason_of(text: str) -> str:
    """p2pd's error in a few words a user understands, for instance ``refused`` or ``wrong peer id (12D3… answers)``."""
    if "mismatch" in text and (ids := re.findall(r"12D3KooW\w+", text)):
        return f"wrong peer id ({ids[-1]} answers there)"
    for pattern, reason in _REASONS:
        if pattern in text:
            return reason
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}…"


def _peer_text(raw: bytes) -> str:
    return str(base58.b58encode(raw).decode())


def _address_text(raw: bytes) -> str | None:
    try:
        return str(Multiaddr(raw))
    except Exception:
        # A protocol the bindings do not know, from a peer we need not understand.
        return None
