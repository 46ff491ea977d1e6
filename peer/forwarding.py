"""Passing a client's calls on to a peer that only we can reach.

A volunteer behind a router that lets nobody in is found by its relayed address: it keeps a connection to the peer that
the address goes through. A light client cannot speak the relay protocol, so it asks that peer to pass the call on, over
the very connection that is there. What comes back is checked by the client as if it had come directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.peer.giving import Registrar, checked
from blockswarm.swarm.fields import Body, integer, mapping, one_of, peer_id

FORWARDED = ("states", "logprobs", "session.logprobs", "sweep", "chain", "counts", "state.head", "state.chunk")
"""What clients ask of holders."""

MAX_FORWARDED = 4 << 20
"""Most bytes of a blob, either way."""

MAX_UNDER_WAY = 64
"""Calls passed on at a time."""

FORWARD_SECONDS = 35.0
"""Longest time for one; holders give themselves 30."""

_BODY = Body(to=peer_id(), method=one_of(*FORWARDED), body=mapping(most=16), max_blob=integer(0, MAX_FORWARDED))


class Forwarder(Registrar, Protocol):
    """The part of a host that passing on needs: ``blockswarm.dht.host.Host``."""

    def connected_peers(self) -> list[str]:
        """Peer ids connected when last looked."""
        ...

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        blob: Any = ...,
        max_blob: int = ...,
        timeout: float,
    ) -> Reply:
        """Call another peer."""
        ...


def serve_forwarding(host: Forwarder) -> None:
    """Answer ``forward {to, method, body, max_blob}``, blob and all, for members of the run.

    Only peers that are connected already are called: nobody can have us dial strangers.
    """
    under_way = 0

    async def forward(request: Request) -> Reply:
        nonlocal under_way
        wanted = checked(_BODY.read, request.body)
        if wanted["to"] not in host.connected_peers():
            raise RpcRefused("not-connected", "this peer has no connection to it")
        if under_way >= MAX_UNDER_WAY:
            raise RpcRefused("busy", f"{MAX_UNDER_WAY} calls are passed on already", {"retry_after": 1.0})
        under_way += 1
        try:
            return await host.call(
                wanted["to"],
                wanted["method"],
                wanted["body"],
                blob=request.blob,
                max_blob=wanted["max_blob"],
                timeout=FORWARD_SECONDS,
            )
        except RpcError as error:
            raise RpcRefused(error.code, error.text, error.detail) from None
        finally:
            under_way -= 1

    host.register("forward", forward, max_blob=MAX_FORWARDED, timeout=FORWARD_SECONDS + 1)
