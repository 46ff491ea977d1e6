"""Runs a gateway: connects to the swarm, listens, and ends within seconds when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import uvicorn

from blockswarm.swarm.client_base import CONNECT_TIMEOUT, Peers
from blockswarm.swarm.gateway.app import Gateway
from blockswarm.swarm.gateway.connection import MAX_HEADER_BYTES, connections_of
from blockswarm.swarm.gateway.errors import GatewayError, GivenGatewayError
from blockswarm.swarm.gateway.key import ApiKey
from blockswarm.swarm.gateway.limits import Limits
from blockswarm.swarm.options import Writing

if TYPE_CHECKING:
    from blockswarm.swarm.async_client import AsyncSwarmClient

T = TypeVar("T")

DRAIN_SECONDS = 1.0
"""Time for requests at work to end by themselves before they are told that the gateway closes."""

LEAVE_SECONDS = 2
"""Then, time for connections to close before they are cut; whole seconds, as uvicorn wants them."""

IDLE_SECONDS = 15
"""Time a connection may stay open between two requests."""


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """What a gateway is started with."""

    peers: Peers
    run_id: str | None = None
    cache: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    key: ApiKey | None = None
    limits: Limits = field(default_factory=Limits)
    draft: str = "ngram"
    counts: Path | None = None
    """File of the run's n-gram counts; by default what was fetched before."""
    connect_timeout: float = CONNECT_TIMEOUT


async def run_gateway(config: GatewayConfig, stop: asyncio.Event, tell: Callable[[str], None]) -> int:
    """Serve until ``stop``; what people should know goes to ``tell``.

    Returns
    -------
    int
        Exit code.

    Raises
    ------
    GatewayError
        When the address cannot be listened on.
    ConnectError
        When no swarm is found.
    """
    from blockswarm.swarm.async_client import AsyncSwarmClient

    Writing(draft=config.draft)  # refused before anybody is asked
    listener = listen(config.host, config.port)
    with contextlib.closing(listener):
        connecting = AsyncSwarmClient.connect(
            config.peers, run=config.run_id, timeout=config.connect_timeout, cache=config.cache, counts=config.counts
        )
        client = await _unless_stopped(connecting, stop)
        if client is None:
            return 0
        async with client, serving(client, config, listener) as (_, served):
            tell(f"ready: {url_of(listener)}/v1 serves {client.run_id}")
            if config.key is None and not _is_loopback(listener):
                tell("warning: whoever reaches this address can use it: give it an API key")
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait((stopped, served), return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                stopped.cancel()
                raise GatewayError("the server ended by itself")
    return 0


@asynccontextmanager
async def serving(
    client: AsyncSwarmClient, config: GatewayConfig, listener: socket.socket
) -> AsyncIterator[tuple[Gateway, asyncio.Task[None]]]:
    """A gateway that answers while this lasts; at the end requests at work are ended, and all connections closed."""
    gateway = Gateway(client, config.limits, key=config.key, draft=config.draft)
    server = _Server(
        uvicorn.Config(
            gateway,
            http=connections_of(config.limits.max_connections),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what strangers send wrong is no news
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
    )
    served = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield gateway, served
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.shield(served)
        gateway.closing.set()
        await served


async def _unless_stopped(work: Awaitable[T], stop: asyncio.Event) -> T | None:
    """What ``work`` gives, or None when ``stop`` is set before."""

    async def wait() -> T:
        return await work

    working, stopped = asyncio.ensure_future(wait()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        stopped.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)  # a half-made connection is closed by then


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises
    ------
    GivenGatewayError
        When there is no such host.
    GatewayError
        When the address is none of this machine's, or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise GivenGatewayError(f"{host}: no address to listen on ({error})") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise GatewayError(f"{host}:{port}: cannot be listened on ({error.strerror})") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where it is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
