"""Calls between peers over raw libp2p streams: the server's loop and the client's side of one call.

The bytes are those of `blockswarm.dht.frames`. Everything a stranger can do here is bounded: sizes before anything is
allocated, time for every read and write, calls at once per peer and in all, memory for blobs in flight. A bound that is
hit costs the caller an error, never this process.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from blockswarm.dht import frames
from blockswarm.dht.errors import FrameError, RpcError, RpcRefused
from blockswarm.dht.peer_id import is_peer_id

logger = logging.getLogger(__name__)

Blob = bytes | bytearray | memoryview

MAX_CALLS = 256
"""Calls answered at once."""
MAX_CALLS_PER_PEER = 32
MAX_STREAMS = 512
"""Open inbound streams, busy or idle."""
MAX_STREAMS_PER_PEER = 64
"""Of one peer: it takes a stream a call, and nobody may keep the others out by holding all there are."""
MAX_BLOBS_IN_FLIGHT = 512 << 20
"""Bytes of blobs at once, of requests as declared and of answers on their way; a single larger one goes when nothing
else does."""
IDLE_SECONDS = 60.0
"""A stream without a request for so long is closed."""
HEADER_SECONDS = 10.0
STALL_SECONDS = 15.0
"""A blob that makes no progress for so long is given up."""
SLOWEST_RATE = 32 << 10
"""Bytes per second below which a blob is given up, so that no slot is held for ever by dripping."""
GONE_SECONDS = 0.5
"""How often a running handler is checked for whether its caller is still there."""
LINGER_SECONDS = 2.0
"""How long a refused caller gets to read the refusal before its stream is closed."""
CHUNK = 256 << 10
SMALL_BLOB = 64 << 10
"""Blobs up to this size are copied behind their header: one write instead of two."""


@dataclass(frozen=True)
class Request:
    """One call as its handler sees it."""

    peer_id: str
    """The caller, proven by the handshake of the connection."""
    method: str
    body: dict[str, Any]
    blob: bytearray
    """Raw bytes that came with the call; the handler owns them."""


@dataclass(frozen=True)
class Reply:
    """An answer: a body of plain msgpack types, and raw bytes."""

    body: dict[str, Any] = field(default_factory=dict)
    blob: Blob = b""


class CallerGone(Exception):
    """The caller ended its stream before it had the answer: it does not want it any more."""


Handler = Callable[[Request], Awaitable[Reply]]
BlobLimit = int | Callable[[str, dict[str, Any], int], int]
"""Largest request blob in bytes, or a function of (caller, body, declared length) asked before any of it is read."""


@dataclass(frozen=True)
class _Method:
    handler: Handler
    max_blob: BlobLimit
    run_bound: bool
    timeout: float


@dataclass
class Traffic:
    """Payload bytes of calls (headers and blobs), both roles together."""

    sent: int = 0
    received: int = 0


class RpcServer:
    """Methods of this peer and the loop that answers them.

    Attributes
    ----------
    run_digest : bytes or None
        Manifest digest that run-bound methods insist on.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.run_digest: bytes | None = None
        self._traffic = traffic
        self._methods: dict[str, _Method] = {}
        self._streams: collections.Counter[str] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._blob_bytes = 0
        self._logged: set[tuple[str, type]] = set()

    def register(self, method: str, handler: Handler, *, max_blob: BlobLimit, run_bound: bool, timeout: float) -> None:
        """Answer ``method`` with ``handler``; a second registration replaces the first."""
        self._methods[method] = _Method(handler, max_blob, run_bound, timeout)

    async def serve(self, peer_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests on one inbound stream until it ends, idles or goes wrong."""
        if self._streams.total() >= MAX_STREAMS or not is_peer_id(peer_id):
            return
        if self._streams[peer_id] >= MAX_STREAMS_PER_PEER:
            return
        self._streams[peer_id] += 1
        try:
            while (head := await self._read_head(reader, writer)) is not None:
                if not await self._answer(peer_id, head, reader, writer):
                    await _linger(reader)
                    return
        except (OSError, EOFError, TimeoutError, CallerGone):
            logger.debug("stream of %s ended early", peer_id)
            writer.transport.abort()
        finally:
            self._streams[peer_id] -= 1
            if not self._streams[peer_id]:
                del self._streams[peer_id]

    async def _read_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> frames.RequestHead | None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                prefix = await reader.readexactly(frames.PREFIX_BYTES)
        except (asyncio.IncompleteReadError, TimeoutError):
            return None
        try:
            async with asyncio.timeout(HEADER_SECONDS):
                header = await reader.readexactly(frames.header_length(prefix))
            self._traffic.received += len(prefix) + len(header)
            return frames.decode_request(header)
        except FrameError as error:
            await self._write(writer, frames.encode_error("bad-request", str(error)))
            await _linger(reader)
            return None

    async def _answer(
        self, peer_id: str, head: frames.RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False if the stream cannot be used further (part of the request is unread)."""
        unread = head.blob_length > 0
        try:
            method = self._method(head)
            with self._slot(peer_id), self._blob_memory(head.blob_length):
                limit = method.max_blob
                if not isinstance(limit, int):
                    limit = limit(peer_id, head.body, head.blob_length)
                if head.blob_length > limit:
                    raise RpcRefused("too-large", f"{head.method}: {head.blob_length} bytes, at most {limit} allowed")
                blob = await read_blob(reader, head.blob_length, self._traffic)
                unread = False
                reply = await self._handle(method, Request(peer_id, head.method, head.body, blob), reader)
                view = memoryview(reply.blob).cast("B")
                with self._blob_memory(len(view)):  # callers that do not read their answers must not fill it either
                    await self._write(writer, frames.encode_reply(reply.body, blob_length=len(view)), view)
            return True
        except RpcRefused as refusal:
            answer = _encode_refusal(refusal)
        except (OSError, EOFError, TimeoutError, CallerGone):
            raise
        except Exception as error:
            self._log_once(head.method, error)
            answer = frames.encode_error("internal", f"{head.method} failed on this peer")
        await self._write(writer, answer)
        return not unread

    def _method(self, head: frames.RequestHead) -> _Method:
        if head.version != frames.PROTOCOL_VERSION:
            raise RpcRefused("protocol", frames.version_mismatch(head.version), {"version": frames.PROTOCOL_VERSION})
        method = self._methods.get(head.method)
        if method is None:
            raise RpcRefused("unknown-method", f"this peer has no method {frames.one_line(head.method)!r}")
        if method.run_bound and (self.run_digest is None or head.run != self.run_digest):
            mine = "no run" if self.run_digest is None else f"the run with manifest {self.run_digest.hex()[:12]}"
            theirs = "none" if head.run is None else head.run.hex()[:12]
            raise RpcRefused("wrong-run", f"this peer is in {mine}, the call is for {theirs}")
        return method

    async def _handle(self, method: _Method, request: Request, reader: asyncio.StreamReader) -> Reply:
        """Run the handler, not longer than it may take nor than its caller waits."""
        task = asyncio.ensure_future(method.handler(request))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + method.timeout
        try:
            while (left := deadline - loop.time()) > 0:
                if (await asyncio.wait([task], timeout=min(left, GONE_SECONDS)))[0]:
                    return task.result()
                if reader.at_eof() or reader.exception() is not None:
                    raise CallerGone
            raise RpcRefused("timeout", f"{request.method} took longer than {method.timeout:g} s on this peer")
        except (TimeoutError, OSError, EOFError) as error:
            # The handler's own: it must not look like trouble on the caller's stream.
            self._log_once(request.method, error)
            raise RpcRefused("internal", f"{request.method} failed on this peer") from None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=STALL_SECONDS)

    @contextlib.contextmanager
    def _slot(self, peer_id: str) -> Iterator[None]:
        if self._calls.total() >= MAX_CALLS:
            raise RpcRefused("busy", f"this peer answers {MAX_CALLS} calls already", {"retry_after": 1.0})
        if self._calls[peer_id] >= MAX_CALLS_PER_PEER:
            raise RpcRefused("busy", f"at most {MAX_CALLS_PER_PEER} calls at once from one peer", {"retry_after": 1.0})
        self._calls[peer_id] += 1
        try:
            yield
        finally:
            self._calls[peer_id] -= 1
            if not self._calls[peer_id]:
                del self._calls[peer_id]

    @contextlib.contextmanager
    def _blob_memory(self, length: int) -> Iterator[None]:
        if length and self._blob_bytes and self._blob_bytes + length > MAX_BLOBS_IN_FLIGHT:
            raise RpcRefused("busy", "this peer receives and sends too much at once", {"retry_after": 1.0})
        self._blob_bytes += length
        try:
            yield
        finally:
            self._blob_bytes -= length

    async def _write(self, writer: asyncio.StreamWriter, header: bytes, blob: memoryview | None = None) -> None:
        length = len(blob) if blob is not None else 0
        async with asyncio.timeout(STALL_SECONDS + length / SLOWEST_RATE):
            await write_frame(writer, header, blob, self._traffic, stall=STALL_SECONDS)

    def _log_once(self, method: str, error: BaseException) -> None:
        if (method, type(error)) in self._logged or len(self._logged) > 100:
            logger.debug("handler of %s failed again: %r", method, error)
            return
        self._logged.add((method, type(error)))
        logger.error("handler of %s failed (further ones of this kind are not shown)", method, exc_info=error)


async def call_on_stream(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    blob: Blob,
    max_blob: int,
    traffic: Traffic,
) -> Reply:
    """Send an encoded request with its blob and read the reply. The caller bounds the time and closes the stream.

    The reply is awaited while the blob is still being sent: a peer that turns the call down says so at once.

    Raises
    ------
    RpcError
        If the peer refuses, or answers with more than ``max_blob`` bytes.
    FrameError
        If the answer is no reply frame.
    OSError, EOFError
        If the stream breaks.
    """
    view = memoryview(blob).cast("B")
    sending = asyncio.create_task(write_frame(writer, request, view, traffic))
    try:
        # Usually the request is gone in one write and this is over before the first read.
        head = await _read_reply_head(reader, traffic)
        if not head.ok:
            raise RpcError(head.code, head.text, head.body)
        if head.blob_length > max_blob:
            raise RpcError("too-large", f"the answer has {head.blob_length} bytes, at most {max_blob} expected")
        return Reply(head.body, await read_blob(reader, head.blob_length, traffic, stall=None))
    finally:
        sending.cancel()
        # A broken stream shows in the reading half too; what the writing half says adds nothing.
        await asyncio.gather(sending, return_exceptions=True)


async def read_blob(
    reader: asyncio.StreamReader, length: int, traffic: Traffic, *, stall: float | None = STALL_SECONDS
) -> bytearray:
    """Exactly ``length`` bytes.

    Raises
    ------
    asyncio.IncompleteReadError
        If the stream ends early.
    TimeoutError
        If nothing comes for ``stall`` seconds, or it comes too slowly (only when ``stall`` is given).
    """
    if not length:
        return bytearray()
    blob = bytearray(length)
    view, filled = memoryview(blob), 0
    overall = None if stall is None else stall + length / SLOWEST_RATE
    async with asyncio.timeout(overall):
        while filled < length:
            async with asyncio.timeout(stall):
                piece = await reader.read(min(length - filled, 4 * CHUNK))
            if not piece:
                raise asyncio.IncompleteReadError(b"", length - filled)
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            traffic.received += len(piece)
    return blob


async def write_frame(
    writer: asyncio.StreamWriter,
    header: bytes,
    blob: memoryview | None,
    traffic: Traffic,
    *,
    stall: float | None = None,
) -> None:
    """Write a header and its blob, piece by piece, never buffering more than a few pieces; small ones in one go."""
    if blob:
        # Zero: the transport may keep a reference to what it has not sent yet, and the owner may change it afterwards.
        writer.transport.set_write_buffer_limits(high=0)
    if blob and len(blob) <= SMALL_BLOB:
        # Every write wakes p2pd, which sends what it finds: half as many cost a third of what answering costs here.
        header, blob = header + bytes(blob), None
    writer.write(header)
    traffic.sent += len(header)
    if blob:
        for start in range(0, len(blob), CHUNK):
            piece = blob[start : start + CHUNK]
            writer.write(piece)
            async with asyncio.timeout(stall):
                await writer.drain()
            traffic.sent += len(piece)
    else:
        async with asyncio.timeout(stall):
            await writer.drain()


async def _read_reply_head(reader: asyncio.StreamReader, traffic: Traffic) -> frames.ReplyHead:
    prefix = await reader.readexactly(frames.PREFIX_BYTES)
    header = await reader.readexactly(frames.header_length(prefix))
    traffic.received += len(prefix) + len(header)
    return frames.decode_reply(header)


async def _linger(reader: asyncio.StreamReader) -> None:
    # Closing with unread data resets the stream, which can overtake the refusal. Read and forget, for a moment.
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(CHUNK):
                pass


def _encode_refusal(refusal: RpcRefused) -> bytes:
    try:
        return frames.encode_error(refusal.code or "refused", refusal.text, refusal.detail)
    except FrameError:
        return frames.encode_error(refusal.code or "refused", refusal.text)
