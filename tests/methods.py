"""The methods that a peer's desks register, asked as a host asks them, without a network."""

from __future__ import annotations

from typing import Any

from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import BlobLimit, Handler, Reply, Request


class Methods:
    """Stands for a host where methods are registered."""

    def __init__(self) -> None:
        self.methods: dict[str, tuple[Handler, BlobLimit]] = {}

    def register(
        self,
        method: str,
        handler: Handler,
        *,
        max_blob: BlobLimit = 0,
        run_bound: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """See `blockswarm.dht.host.Host.register`."""
        self.methods[method] = handler, max_blob

    def check_size(self, peer_id: str, method: str, body: dict[str, Any], length: int) -> None:
        """Refuse a blob that is larger than the method takes, as a host does before it reads one."""
        limit = self.methods[method][1]
        most = limit(peer_id, body, length) if callable(limit) else limit
        if length > most:
            raise RpcRefused("too-large", f"{length} bytes, at most {most}")

    async def ask(self, peer_id: str, method: str, body: dict[str, Any], blob: bytes = b"") -> Reply:
        """What the method answers, or the `RpcRefused` that it raises."""
        self.check_size(peer_id, method, body, len(blob))
        return await self.methods[method][0](Request(peer_id, method, body, bytearray(blob)))
