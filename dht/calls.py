"""The calling side: find the way to a peer, open a stream, ask, and say in one word why it failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from blockswarm.dht import frames
from blockswarm.dht.address_book import AddressBook
from blockswarm.dht.control import Control, ControlError
from blockswarm.dht.dialing import dial, is_dialed
from blockswarm.dht.errors import FrameError, RpcError
from blockswarm.dht.rpc import Blob, Reply, Traffic, call_on_stream

MAX_CALLS_OUT = 64
"""Streams this peer opens at once; with several hundred, p2pd has been seen to lose data."""
DIAL_SECONDS = 5.0
REACHED_SECONDS = 5.0
"""So long after a successful call the connection is taken for granted."""
_MAX_REACHED = 1024


class Caller:
    """Outgoing calls of one host; see `Host.call`."""

    def __init__(self, own_id: str, control: Control, book: AddressBook, traffic: Traffic) -> None:
        self._own_id = own_id
        self._control = control
        self._book = book
        self._traffic = traffic
        self._slots = asyncio.Semaphore(MAX_CALLS_OUT)
        self._reached: dict[str, float] = {}

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        blob: Blob,
        max_blob: int,
        timeout: float,
        *,
        run: bytes | None,
    ) -> Reply:
        """One request, one reply, on a stream of its own that is closed in every case.

        Raises
        ------
        RpcError
            For whatever happens on the network.
        FrameError
            If ``body`` cannot be sent.
        """
        request = frames.encode_request(method, body, run=run, blob_length=memoryview(blob).nbytes)
        try:
            async with asyncio.timeout(timeout), self._slots:
                await self._find_way(peer_id, timeout)
                async with self._control.open_stream(peer_id, frames.PROTOCOL_ID) as (reader, writer):
                    reply = await call_on_stream(reader, writer, request, blob, max_blob, self._traffic)
        except RpcError:
            self.reached(peer_id)
            raise
        except FrameError as error:
            raise RpcError("protocol", f"{peer_id} answered {method} with nonsense: {error}") from None
        except (ControlError, TimeoutError, OSError, EOFError) as error:
            self._reached.pop(peer_id, None)
            raise _explained(error, peer_id, method, timeout) from None
        self.reached(peer_id)
        return reply

    def reached(self, peer_id: str) -> None:
        """Note that the peer answered just now."""
        self._reached.pop(peer_id, None)
        self._reached[peer_id] = time.monotonic()
        if len(self._reached) > _MAX_REACHED:
            del self._reached[next(iter(self._reached))]

    async def _find_way(self, peer_id: str, timeout: float) -> None:
        """Dial a learned peer unless it answered a moment ago; with nothing learned the daemon finds its own way."""
        now = time.monotonic()
        if self._reached.get(peer_id, -REACHED_SECONDS) + REACHED_SECONDS > now:
            return
        addrs = self._book.addrs(peer_id)
        if not addrs or peer_id in await self._control.list_peers():
            return
        if await is_dialed(self._control, self._own_id, peer_id):
            return
        try:
            await dial(self._control, peer_id, addrs, min(DIAL_SECONDS, timeout))
        except ControlError:
            self._book.failed(peer_id, now)
            raise
        self._book.succeeded(peer_id)


def _explained(error: Exception, peer_id: str, method: str, timeout: float) -> RpcError:
    if isinstance(error, ControlError):
        return RpcError("unreachable", f"{peer_id}: {error}")
    if isinstance(error, TimeoutError):
        return RpcError("timeout", f"{method} of {peer_id} brought no answer within {timeout:g} s")
    return RpcError("unreachable", f"the connection to {peer_id} broke during {method}")
