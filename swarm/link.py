"""Calls to peers from a process without p2pd: the light client's transport, on py-libp2p.

Speaks the same RPC as :class:`blockswarm.dht.host.Host` and fails in the same words (:class:`RpcError`). A link only
dials: it listens nowhere, announces nothing, and its identity lives as long as it does. It runs on trio; see
:mod:`blockswarm.swarm.thread` for reaching it from elsewhere.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from blockswarm.dht import frames
from blockswarm.dht.addresses import parse
from blockswarm.dht.errors import AddressError, FrameError, RpcError
from blockswarm.swarm import connection as transport
from blockswarm.swarm.connection import Connection, Stream, reason
from blockswarm.swarm.race import race

DIAL_TIMEOUT = 10.0
"""Seconds for reaching a peer by all its addresses; a black-holed one otherwise costs two minutes."""

DIAL_STAGGER = 0.25
"""Seconds between starting one address of a peer and the next beside it."""

MAX_STREAMS = 16
"""Calls to one peer at a time; more wait. Well under the 64 streams at which p2pd was seen to lose data."""

KEPT_STREAMS = MAX_STREAMS // 2
"""Of these, those for calls that somebody waits for; see `Link.idle`."""

IDLE_SECONDS = 45.0
"""A stream unused for longer is not used again: servers end theirs after 60 s."""

SMALL_BLOB = 64 * 1024
"""A blob up to this size fits any stream's window and is sent before the answer is waited for."""

RELAY_FAILED = ("unreachable", "timeout", "protocol", "unknown-method", "not-connected", "wrong-run")
"""Codes with which a call was not passed on."""

MAX_KNOWN_PEERS = 4096
"""Address book entries; the oldest give way."""

MAX_ADDRESSES = 8
"""Addresses kept of one peer, as many as a record may carry."""


def words(error: Exception) -> str:
    """What went wrong, without the code a program would look at."""
    return error.text or error.code if isinstance(error, RpcError) else str(error) or type(error).__name__


@dataclass(frozen=True)
class Reply:
    """A peer's good answer: a body of plain msgpack values and raw bytes."""

    body: dict[str, Any]
    blob: bytes = b""


def dialable(address: str) -> tuple[str, int] | None:
    """Host and port of a multiaddr this transport can dial (direct, plain TCP), else None."""
    try:
        parsed = parse(address)
    except AddressError:
        return None
    direct = parsed.transport == "tcp" and parsed.relay_id is None and parsed.port > 0
    return (parsed.host, parsed.port) if direct else None


def relay(address: str) -> tuple[str, str] | None:
    """Peer id and address of the relay that a multiaddr goes through, if this transport can dial it; else None."""
    try:
        parsed = parse(address)
    except AddressError:
        return None
    through = address.split("/p2p-circuit", 1)[0]
    return (parsed.relay_id, through) if parsed.relay_id is not None and dialable(through) else None


def short(peer_id: str) -> str:
    """A peer id as people read it: its tail, since all begin alike."""
    return f"…{peer_id[-8:]}"


class Link:
    """Connections to peers, made when first needed and kept.

    Use it inside one trio loop only.

    Parameters
    ----------
    nursery : trio.Nursery
        Where connections live; cancelling it drops them all.
    """

    def __init__(self, nursery: Any) -> None:
        self._nursery = nursery
        self._libp2p: transport.Libp2p | None = None
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._connections: dict[str, Connection] = {}
        self._dialling: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}
        self._idle: dict[str, deque[tuple[float, Stream, Connection]]] = {}
        self._closed = False
        self.bytes_sent = 0
        self.bytes_received = 0
        """RPC payload moved so far, without the transport's own."""

    def learn(self, peer_id: str, addresses: Iterable[str]) -> None:
        """Remember where ``peer_id`` can be dialled; replaces what was known.

        Parameters
        ----------
        peer_id : str
            The peer.
        addresses : iterable of str
            Multiaddrs, with or without ``/p2p/…``. Relayed ones are used where there is no TCP address to dial, others
            (QUIC) are kept for the error message only.
        """
        known = tuple(addresses)[:MAX_ADDRESSES]
        if known:
            self._addresses.pop(peer_id, None)
            self._addresses[peer_id] = known
            while len(self._addresses) > MAX_KNOWN_PEERS:
                self._addresses.pop(next(iter(self._addresses)))

    def prepare(self) -> None:
        """Load the transport now, so that its import (half a second, more on a busy machine) counts against no call."""
        if self._libp2p is None:
            self._libp2p = transport.load()

    def addresses(self, peer_id: str) -> tuple[str, ...]:
        """What is known of where ``peer_id`` can be dialled."""
        return self._addresses.get(peer_id, ())

    def connected(self, peer_id: str) -> bool:
        """Whether a connection to ``peer_id`` is open."""
        held = self._connections.get(peer_id)
        return held is not None and held.alive

    def idle(self, peer_id: str) -> bool:
        """Whether a call to ``peer_id`` that may turn out to be in vain keeps none waiting that is needed."""
        limit = self._limits.get(peer_id)
        return limit is None or limit.value > KEPT_STREAMS

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        run: bytes | None = None,
        blob: bytes | memoryview = b"",
        max_blob: int = 0,
        timeout: float,
    ) -> Reply:
        """Ask ``peer_id`` and wait for its reply.

        Parameters
        ----------
        peer_id : str
            A peer whose addresses were learned.
        method, body : str, mapping
            The call; ``body`` is a msgpack-able map.
        run : bytes, optional
            Manifest digest (32 bytes) for run-bound methods.
        blob : bytes-like
            Raw bytes sent after the header.
        max_blob : int
            Most bytes the reply may carry; a longer one is refused unread.
        timeout : float
            Seconds for everything, dialling included.

        Raises
        ------
        RpcError
            The peer's own code and text, or ``unreachable``, ``timeout``, ``protocol``.
        """
        with trio.move_on_after(timeout) as scope:
            limit = self._limits.setdefault(peer_id, trio.Semaphore(MAX_STREAMS))
            async with limit:
                if not self._direct(peer_id) and (relays := self._relays(peer_id)):
                    reply = await self._forwarded(relays, peer_id, method, body, run, blob, max_blob)
                else:
                    reply = await self._call(peer_id, method, body, run, blob, max_blob)
        if not scope.cancelled_caught:
            return reply
        raise RpcError("timeout", f"{short(peer_id)} did not answer {method} in {timeout:.3g} s")

    async def close(self) -> None:
        """Close every connection, side by side, within a second."""
        self._closed = True
        held, self._connections = list(self._connections.values()), {}
        self._idle.clear()
        with transport.shielded(1.0):
            async with trio.open_nursery() as nursery:
                for connection in held:
                    nursery.start_soon(connection.close)

    async def _call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        run: bytes | None,
        blob: bytes | memoryview,
        max_blob: int,
    ) -> Reply:
        request = frames.encode_request(method, body, run=run, blob_length=len(blob))
        stale = False
        while True:
            stream, connection, reused = await self._stream(peer_id)
            try:
                reply, received, intact = await _exchange(stream, request, blob, max_blob)
            except RpcError:
                await stream.reset()
                raise
            except Exception as error:
                await stream.reset()
                if reused:
                    continue  # the peer had ended the idle stream; the pool runs empty, so this ends too
                if not stream.agreed:
                    await self._drop(connection)
                    if not stale:
                        stale = True
                        continue  # the connection was dead, and only this shows it: once more over another
                raise RpcError("unreachable", f"{short(peer_id)} broke off {method}: {reason(error)}") from error
            except BaseException:
                await stream.reset()
                raise
            self.bytes_sent += len(request) + len(blob)
            self.bytes_received += received
            if intact:
                self._idle.setdefault(peer_id, deque()).append((trio.current_time(), stream, connection))
            else:
                await stream.reset()
            if isinstance(reply, RpcError):
                raise reply
            return reply

    def _direct(self, peer_id: str) -> bool:
        return self.connected(peer_id) or any(map(dialable, self.addresses(peer_id)))

    def _relays(self, peer_id: str) -> dict[str, str]:
        """Peers that a peer without a TCP address of its own keeps connections to, and their addresses."""
        return dict(filter(None, map(relay, self.addresses(peer_id))))

    async def _forwarded(
        self,
        relays: Mapping[str, str],
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        run: bytes | None,
        blob: bytes | memoryview,
        max_blob: int,
    ) -> Reply:
        """The same call, passed on by the first relay that has a connection to the peer."""
        failures = []
        for name, address in relays.items():
            if not self._direct(name):
                self.learn(name, [address])
            wrapped = {"to": peer_id, "method": method, "body": dict(body), "max_blob": max_blob}
            try:
                # Beside the peer's own limit: a relay has many peers behind it, and as few streams as anybody.
                async with self._limits.setdefault(name, trio.Semaphore(MAX_STREAMS)):
                    return await self._call(name, "forward", wrapped, run, blob, max_blob)
            except RpcError as error:
                if error.code not in RELAY_FAILED:
                    raise  # the peer's own answer
                failures.append(f"{short(name)}: {words(error)}")
        raise RpcError("unreachable", f"no relay passes a call on to {short(peer_id)} ({'; '.join(failures)})")

    async def _stream(self, peer_id: str) -> tuple[Stream, Connection, bool]:
        """An idle stream of a live connection, else a new one; the flag says which."""
        idle = self._idle.get(peer_id, deque())
        while idle:
            since, stream, connection = idle.pop()
            if connection.alive and trio.current_time() - since < IDLE_SECONDS:
                return stream, connection, True
            if connection.alive:
                await stream.reset()
        for attempt in range(2):
            connection = await self._connection(peer_id)
            try:
                return await connection.open(frames.PROTOCOL_ID), connection, False
            except Exception as error:
                await self._drop(connection)
                if attempt:
                    text = f"{short(peer_id)} opens no {frames.PROTOCOL_ID} stream: {reason(error)}"
                    raise RpcError("unreachable", text) from error
        raise AssertionError("unreachable")

    async def _connection(self, peer_id: str) -> Connection:
        async with self._dialling.setdefault(peer_id, trio.Lock()):
            held = self._connections.get(peer_id)
            if self._closed:
                raise RpcError("unreachable", "this client is closed")
            if held is not None and held.alive:
                return held
            if held is not None:
                await self._drop(held)
            made = self._connections[peer_id] = await self._dial(peer_id)
            return made

    async def _drop(self, connection: Connection) -> None:
        if self._connections.get(connection.peer_id) is connection:
            del self._connections[connection.peer_id]
        await connection.close()

    async def _dial(self, peer_id: str) -> Connection:
        known = self._addresses.get(peer_id, ())
        targets = {address: target for address in known if (target := dialable(address)) is not None}
        if not targets:
            have = f"only {', '.join(known)}" if known else "none known"
            raise RpcError("unreachable", f"no TCP address of {short(peer_id)} to dial ({have})")
        self.prepare()

        async def one(address: str) -> Connection:
            host, port = targets[address]
            assert self._libp2p is not None
            return await transport.dial(self._libp2p, host, port, peer_id, self._nursery)

        with trio.move_on_after(DIAL_TIMEOUT) as scope:
            outcome = await race(targets, one, lambda _: DIAL_STAGGER)
        if scope.cancelled_caught:
            where = ", ".join(targets)
            raise RpcError("unreachable", f"{short(peer_id)} at {where}: no connection in {DIAL_TIMEOUT:g} s")
        if outcome.won is None:
            reasons = "; ".join(words(error) for error in outcome.failed.values())
            raise RpcError("unreachable", f"{short(peer_id)} cannot be dialled ({reasons})")
        return outcome.won.result


async def _exchange(
    stream: Stream, request: bytes, blob: bytes | memoryview, max_blob: int
) -> tuple[Reply | RpcError, int, bool]:
    """Send a request and receive its reply; the flag says whether the stream is good for another request.

    A large blob is sent beside the waiting: a peer that turns the call down says so before it has taken the blob.
    """
    if len(blob) <= SMALL_BLOB:
        await stream.write(request + bytes(blob))
        return *await _receive(stream, max_blob), True
    sent = False

    async def send() -> None:
        nonlocal sent
        with contextlib.suppress(Exception):  # a broken stream shows in the reading too
            await stream.write(request + bytes(blob))
            sent = True

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            reply, received = await _receive(stream, max_blob)
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return reply, received, sent


async def _receive(stream: Stream, max_blob: int) -> tuple[Reply | RpcError, int]:
    """One reply and its size in bytes. A refusal is returned, not raised: the stream stays good for the next call."""
    try:
        length = frames.header_length(await stream.read_exactly(frames.PREFIX_BYTES))
        head = frames.decode_reply(await stream.read_exactly(length))
    except FrameError as error:
        raise RpcError("protocol", str(error)) from error
    if not head.ok:
        return RpcError(head.code, head.text, head.body), frames.PREFIX_BYTES + length
    if head.blob_length > max_blob:
        raise RpcError("too-large", f"the answer announces {head.blob_length} bytes, at most {max_blob} are due")
    blob = await stream.read_exactly(head.blob_length)
    return Reply(head.body, blob), frames.PREFIX_BYTES + length + len(blob)
