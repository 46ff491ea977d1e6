"""Targets: what comes over a stream, request or answer, chunk or encoded update."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np

from blockswarm.dht import frames, rpc
from blockswarm.dht.errors import FrameError, RpcError
from blockswarm.dht.packing import PackingError, pack, unpack
from blockswarm.dht.rpc import Reply, Request, RpcServer, Traffic, call_on_stream
from blockswarm.peer import transfer
from blockswarm.peer.download import TransferError
from blockswarm.peer.states import State
from blockswarm.peer.transfer import StateFetcher
from blockswarm.swarm.answers import check_hidden, check_rows
from blockswarm.swarm.codec import NAMES, CodecError, decode, encode, encoded_size
from blockswarm.swarm.errors import UntrustedAnswerError
from blockswarm.swarm.link import Reply as LightReply
from tests.fuzz.target import IDENTITIES, MIB, Target, manifest

CALLER = IDENTITIES[0].peer_id
MOST_BLOB = 1000
"""Bytes that may come with a call."""


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """One event loop for all runs: making one takes longer than most of them."""
    return asyncio.new_event_loop()


class Outlet(asyncio.Transport):
    """Where the writing half of a stream leads: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    abort = close


def writing(outlet: Outlet, reader: asyncio.StreamReader) -> asyncio.StreamWriter:
    """The writing half of ``reader``'s stream, as asyncio makes it."""
    return asyncio.StreamWriter(outlet, asyncio.StreamReaderProtocol(reader, loop=loop()), reader, loop())


def inlet(data: bytes) -> asyncio.StreamReader:
    """The reading half of a stream on which ``data`` arrives and nothing else."""
    reader = asyncio.StreamReader(loop=loop())
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def _echo(request: Request) -> Reply:
    return Reply(request.body, request.blob)


@functools.cache
def _server() -> RpcServer:
    server = RpcServer(Traffic())
    server.run_digest = b"r" * 32
    server.register("echo", _echo, max_blob=MOST_BLOB, run_bound=False, timeout=5)
    server.register("bound", _echo, max_blob=lambda peer, body, length: body.get("most", 0), run_bound=True, timeout=5)
    return server


def served_stream(data: bytes) -> bool:
    """Whatever arrives, what goes back are whole answers; nothing is left behind, and nothing is raised."""
    server, outlet, reader = _server(), Outlet(), inlet(data)
    loop().run_until_complete(server.serve(CALLER, reader, writing(outlet, reader)))
    outlet.close()
    assert server._calls.total() == server._streams.total() == server._blob_bytes == 0
    written, answers = memoryview(outlet.written), 0
    while written:
        length = frames.header_length(bytes(written[:4]))
        head = frames.decode_reply(bytes(written[4 : 4 + length]))
        assert head.code != "internal" or b"bound" in data, "an echo does not fail"
        assert len(written) >= 4 + length + head.blob_length
        written = written[4 + length + head.blob_length :]
        answers += head.ok
    return answers > 0


def _requests() -> list[bytes]:
    hello = frames.encode_request("echo", {"a": 1}, blob_length=3) + b"abc"
    bound = frames.encode_request("bound", {"most": 2}, run=b"r" * 32, blob_length=2) + b"ab"
    return [hello, hello + bound + hello, frames.encode_request("echo", {})]


def answering_stream(data: bytes) -> bool:
    """An answer is read whole, or the call ends in one of four errors."""
    outlet, reader = Outlet(), inlet(data)
    call = call_on_stream(reader, writing(outlet, reader), b"request", b"", MOST_BLOB, Traffic())
    try:
        reply = loop().run_until_complete(call)
    except (RpcError, FrameError, OSError, EOFError):
        return False
    finally:
        outlet.close()
    assert len(reply.blob) <= MOST_BLOB
    return True


def _answers() -> list[bytes]:
    return [frames.encode_reply({"a": 1}, blob_length=3) + b"abc", frames.encode_reply({})]


# -- answers to predictions --------------------------------------------------------------------------------------------


def rows(data: bytes) -> bool:
    """Rows that are believed are finite and normalised, and no byte is impossible in them."""
    try:
        believed = check_rows(LightReply({}, data[1:]), 1 + data[0] % 3 if data else 1)
    except UntrustedAnswerError:
        return False
    total = np.exp(believed.astype(np.float64)).sum(axis=-1)
    assert np.isfinite(believed).all() and (np.abs(total - 1) < 0.01).all()
    return True


def hidden(data: bytes) -> bool:
    """A z that is believed is finite and of the shape that is due."""
    try:
        believed = check_hidden(LightReply({}, data), 3, 8)
    except UntrustedAnswerError:
        return False
    assert believed.shape == (3, 8) and np.isfinite(believed).all()
    return True


def _row_seeds() -> list[bytes]:
    logits = np.random.default_rng(1).standard_normal((3, 256))
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [bytes([2]) + logits.astype("<f4").tobytes(), bytes([0]) + logits[0].astype("<f4").tobytes()]


# -- encoded updates ---------------------------------------------------------------------------------------------------


def codec(data: bytes) -> bool:
    """Bytes of the right length mean values, in groups with a scale finite ones; or they are refused."""
    name, count = NAMES[data[0] % len(NAMES)] if data else "none", int.from_bytes(data[1:3], "big") % 5000
    size = encoded_size(count, name)
    encoded = data[3 : 3 + size].ljust(size, b"\0")
    try:
        values = decode(encoded, count, name)
    except CodecError:
        return False
    assert values.shape == (count,) and values.dtype == np.float32
    assert np.isfinite(values).all() or name in ("none", "fp16"), "who sums these looks at their norm"
    if name == "none":
        assert values.tobytes() == encoded
    return True


def _codec_seeds() -> list[bytes]:
    values = np.random.default_rng(2).standard_normal(150).astype(np.float32)
    return [bytes([at]) + (150).to_bytes(2, "big") + encode(values, name) for at, name in enumerate(NAMES)]


# -- states ------------------------------------------------------------------------------------------------------------


def fetched_state(data: bytes) -> bool:
    """A state that is fetched is the one that its digest names, whatever two holders send.

    ``data`` is a msgpack list of what the holders answer, in turn: a map is a head, bytes are a chunk.
    """
    try:
        script = unpack(data, max_bytes=MIB)
    except PackingError:
        return False
    if not isinstance(script, list):
        return False
    answers = iter(script)

    async def call(peer_id: str, method: str, body: Mapping[str, Any], *, max_blob: int = 0, timeout: float) -> Any:
        answer = next(answers, None)
        if isinstance(answer, dict):
            return rpc.Reply(answer)
        if isinstance(answer, bytes) and len(answer) <= max_blob:
            return rpc.Reply({}, answer)
        raise RpcError("bad-request", "nothing more")

    fetcher = StateFetcher(call, manifest(), lambda: 3)
    try:
        with patch.object(transfer, "PAUSE_SECONDS", 0.0):
            state = loop().run_until_complete(fetcher.fetch(0, ["one", "other"], seconds=10.0))
    except TransferError:
        return False
    assert State.make(0, 0, state.values, samples=0).digest == state.digest == manifest().genesis_digest(0)
    return True


def _fetch_seeds() -> list[bytes]:
    state = State.genesis(manifest(), 0)
    head, chunk = state.head.to_body(), bytes(state.chunk(0))
    return [pack([head, head, chunk]), pack([head, None, chunk, b"wrong", chunk]), pack([head, head, b"wrong", chunk])]


TARGETS = [
    Target("served-stream", served_stream, _requests, memory=8 * MIB, longest=64 << 10),
    Target("answering-stream", answering_stream, _answers, memory=8 * MIB),
    Target("rows", rows, _row_seeds, memory=8 * MIB),
    Target("hidden", hidden, lambda: [np.ones((3, 8), "<f4").tobytes()]),
    Target("codec", codec, _codec_seeds, longest=64 << 10),
    Target("fetched-state", fetched_state, _fetch_seeds, memory=8 * MIB, longest=64 << 10),
]
