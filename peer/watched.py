"""Registering methods so that whoever sends what has to be refused is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import BlobLimit, Handler, Reply, Request
from blockswarm.peer.giving import Registrar

Note = Callable[[str, str, dict[str, Any], RpcRefused], None]
"""Told the caller, the method, the body, and why it was refused."""


class Watched:
    """Registers methods of ``host``; their refusals, before and after the blob was read, are told to ``note``."""

    def __init__(self, host: Registrar, note: Note) -> None:
        self._host = host
        self._note = note

    def register(self, method: str, handler: Handler, *, max_blob: BlobLimit = 0, timeout: float = 30.0) -> None:
        """See `blockswarm.dht.host.Host.register`; the methods are bound to the run."""

        async def answer(request: Request) -> Reply:
            try:
                return await handler(request)
            except RpcRefused as refusal:
                self._note(request.peer_id, method, request.body, refusal)
                raise

        def limit(caller: str, body: dict[str, Any], length: int) -> int:
            try:
                most = max_blob if isinstance(max_blob, int) else max_blob(caller, body, length)
                if length > most:
                    raise RpcRefused("too-large", f"{method}: {length} bytes, at most {most} allowed")
            except RpcRefused as refusal:
                self._note(caller, method, body, refusal)
                raise
            return most

        self._host.register(method, answer, max_blob=limit, timeout=timeout)
