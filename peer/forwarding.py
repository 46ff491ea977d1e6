"""Passing a client's calls on to a peer that only we can reach.

A volunteer behind a router that lets nobody in is found by its relayed address: it keeps a connection to the peer that
the address goes through. A light client cannot speak the relay protocol, so it asks that peer to pass the call on, over
the very connection that is there. What comes back is checked by the client as if it had come directly.
"""

from __future__ import annotations

from collections import Counter
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

MAX_OF_CALLER = 32
"""Of one caller: half, so that none can keep all others out by itself."""

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
    under_way: Counter[str] = Counter()

    def size(caller: str, body: dict[str, Any], declared: int) -> int:
        """Bytes that may come along; asked before any of them is read."""
        if checked(_BODY.read, body)["to"] not in host.connected_peers():
            raise RpcRefused("not-connected", "this peer has no connection to it")
        if under_way.total() >= MAX_UNDER_WAY or under_way[caller] >= MAX_OF_CALLER:
            waiting = f"{under_way.total()} calls are passed on already, {under_way[caller]} of them yours"
            raise RpcRefused("busy", waiting, {"retry_after": 1.0})
        return MAX_FORWARDED

    async def forward(request: Request) -> Reply:
        size(request.peer_id, request.body, len(request.blob))  # again: others may have come while it was read
        wanted = checked(_BODY.read, request.body)
        under_way[request.peer_id] += 1
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
            under_way.subtract([request.peer_id])
            if not under_way[request.peer_id]:
                del under_way[request.peer_id]

    host.register("forward", forward, max_blob=size, timeout=FORWARD_SECONDS + 1)
