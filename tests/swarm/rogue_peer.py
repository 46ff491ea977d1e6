"""A holder that keeps no rule of the transport, and a client beside it, both in one trio loop; run by its test.

Prints what the client made of one behaviour, named on the command line: how the call ended, how long it took, and how
much memory the process took meanwhile.
"""

from __future__ import annotations

import functools
import json
import math
import resource
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils import encode_uvarint

from blockswarm.dht import frames
from blockswarm.dht.errors import RpcError
from blockswarm.swarm.connection import Stream
from blockswarm.swarm.link import Link

KEY = create_new_key_pair()
PEER = str(ID.from_pubkey(KEY.public_key))
FLOOD = 400 << 20
"""Bytes that a flood brings, if nobody stops it."""
FRAME = 64 << 10


async def _flood(send: Callable[[bytes], Awaitable[Any]], header: bytes = b"") -> None:
    for _ in range(FLOOD // FRAME):
        await send(header + bytes(FRAME))


async def _answered(muxer: Any) -> Any:
    """Accept a stream, speak our protocol, and answer one call."""
    raw = await muxer.accept_stream()
    await Multiselect({frames.PROTOCOL_ID: None}).negotiate(MultiselectCommunicator(raw), math.inf)
    stream = Stream(raw)
    await stream.read_exactly(frames.header_length(await stream.read_exactly(4)))
    await stream.write(frames.encode_reply({"fine": True}))
    return raw


async def flood_after_the_answer(muxer: Any) -> None:
    """Goes on sending on a stream that nobody reads, whatever its window."""
    raw = await _answered(muxer)
    await _flood(muxer._write_frame, struct.pack("!BBHII", 0, 0, 0, raw.stream_id, FRAME))


async def greeting_without_end(muxer: Any) -> None:
    """Names a protocol of a terabyte."""
    raw = await muxer.accept_stream()
    header = struct.pack("!BBHII", 0, 0, 0, raw.stream_id, FRAME)
    length = encode_uvarint(1 << 40)
    await muxer._write_frame(struct.pack("!BBHII", 0, 0, 0, raw.stream_id, len(length)) + length)
    await _flood(muxer._write_frame, header)


async def streams_without_end(muxer: Any) -> None:
    """Opens ten thousand streams, and answers as it should meanwhile."""

    async def open_many() -> None:
        for number in range(10_000):
            await muxer._write_frame(struct.pack("!BBHII", 0, 1, 1, 2 * number + 2, 0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_many)
        while True:
            await (await _answered(muxer)).close()


MUXED = {one.__name__: one for one in (flood_after_the_answer, greeting_without_end, streams_without_end)}


async def babble(tcp: trio.SocketStream) -> None:
    """Greets without end before the connection is secured."""
    await tcp.send_all(encode_uvarint(1 << 40))
    await _flood(tcp.send_all)


async def serve(how: str, tcp: trio.SocketStream) -> None:
    """One connection of the client."""
    try:
        if how == "babble":
            await babble(tcp)
            return
        noise = Transport(KEY, new_noise_key().private_key)
        upgrader = TransportUpgrader({NOISE: noise}, {YAMUX: Yamux})
        secured = await upgrader.upgrade_security(RawConnection(TrioTCPStream(tcp), False), False)
        muxer = await upgrader.upgrade_connection(secured, secured.get_remote_peer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxer.start)
            await muxer.event_started.wait()
            await MUXED[how](muxer)
    except Exception:
        return  # the client has had enough


async def main(how: str) -> None:
    """Call the rogue a few times."""
    said: list[Any] = []
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            functools.partial(trio.serve_tcp, functools.partial(serve, how), 0, host="127.0.0.1")
        )
        port = listeners[0].socket.getsockname()[1]
        link = Link(nursery)
        link.prepare()
        link.learn(PEER, [f"/ip4/127.0.0.1/tcp/{port}"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        for _ in range(2):
            try:
                said.append((await link.call(PEER, "hello", {}, timeout=15.0)).body)
            except RpcError as error:
                said.append([error.code, error.text])
            await trio.sleep(1.0)
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        seconds = time.monotonic() - began
        await link.close()
        nursery.cancel_scope.cancel()
    print(json.dumps({"said": said, "seconds": seconds, "kilobytes": taken}))


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
