"""A peer for transport tests: a real p2pd whose streams answer honestly, oddly, or not at all.

Speaks the same command language as ``small_swarm.py``: ``start`` tells its address, ``kill`` ends its p2pd. What it
does with a request is named by the request's method.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from blockswarm.dht import frames
from blockswarm.dht.control import Control, StreamServer
from blockswarm.dht.daemon import Daemon
from blockswarm.dht.identity import Identity

IDENTITY = Identity.ephemeral()


async def serve(peer_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Requests of one stream, in turn."""
    try:
        while True:
            head = frames.decode_request(await reader.readexactly(frames.header_length(await reader.readexactly(4))))
            if head.method == "full":  # turns the call down without reading what comes along
                writer.write(frames.encode_error("too-large", "no room", {"most": 7}))
                await writer.drain()
                await asyncio.sleep(3)
                return
            blob = await reader.readexactly(head.blob_length)
            await answer(head, blob, peer_id, writer)
            await writer.drain()
            if head.method == "once":
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def answer(head: frames.RequestHead, blob: bytes, peer_id: str, writer: asyncio.StreamWriter) -> None:
    """One answer, as the method says."""
    body: dict[str, Any] = head.body
    if head.method in ("echo", "once"):
        writer.write(frames.encode_reply({"got": body, "peer_id": peer_id, "run": head.run}, blob_length=len(blob)))
        writer.write(blob)
    elif head.method == "big":
        writer.write(frames.encode_reply({}, blob_length=body["size"]) + os.urandom(body["size"]))
    elif head.method == "refuse":
        writer.write(frames.encode_error("busy", "come back", {"retry_after": 0.5}))
    elif head.method == "sleep":
        await asyncio.sleep(body["seconds"])
        writer.write(frames.encode_reply({"slept": body["seconds"]}))
    elif head.method == "early-end":
        writer.write(frames.encode_reply({}, blob_length=1000) + b"x" * 10)
        await writer.drain()
        writer.close()
    elif head.method == "forward":
        known = {"to": body["to"], "asked": body["method"], "body": body["body"], "run": head.run}
        if body["method"] == "states":
            writer.write(frames.encode_error("not-connected", "never heard of it"))
        elif body["method"] == "sweep":
            writer.write(frames.encode_error("busy", "says the holder", {"retry_after": 0.5}))
        else:
            writer.write(frames.encode_reply(known, blob_length=len(blob)) + blob)
    elif head.method == "garbage":
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" * 10)
    elif head.method == "nonsense":
        writer.write(b"\0\0\0\5hello")
    elif head.method == "huge-header":
        writer.write(b"\xff\xff\xff\xff")


async def main() -> None:
    """Carry out commands until standard input ends."""
    loop = asyncio.get_running_loop()
    daemon: Daemon | None = None
    streams: StreamServer | None = None
    port = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        reply: dict[str, Any] = {}
        if command["do"] == "start":
            daemon = await Daemon.start(IDENTITY, listen=[f"/ip4/127.0.0.1/tcp/{port}"])
            control = Control(daemon.control_path)
            streams = await control.accept_streams(frames.PROTOCOL_ID, daemon.folder / "streams", serve)
            addresses = (await control.identify())[1]
            port = int(addresses[0].split("/")[4])
            reply = {"peers": [f"{address}/p2p/{IDENTITY.peer_id}" for address in addresses]}
        elif command["do"] == "kill" and daemon is not None and streams is not None:
            os.kill(daemon.pid, signal.SIGKILL)
            streams.close()
            await daemon.stop()
            daemon = None
        print(json.dumps(reply), flush=True)
    if daemon is not None and streams is not None:
        streams.close()
        await daemon.stop()


if __name__ == "__main__":
    asyncio.run(main())
