"""A client's core in a swarm of functions: peers that answer what they are told to, without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import trio

from blockswarm.dht.errors import RpcError
from blockswarm.dht.records import BlockRecord
from blockswarm.swarm.core import Core
from blockswarm.swarm.holders import HolderBook
from blockswarm.swarm.link import Link, Reply
from blockswarm.swarm.manifest import Manifest

Answer = Callable[..., Awaitable[Reply]]
"""What a peer answers to a method with a body, and a blob where there is one."""


class Functions(Link):
    """A link that leads to functions instead of peers."""

    def __init__(self, nursery: Any, run: bytes, asked: Counter[str], peers: dict[str, Answer]) -> None:
        super().__init__(nursery)
        self._run, self._asked, self._peers = run, asked, peers

    async def call(
        self, peer_id: str, method: str, body: Mapping[str, Any], *, timeout: float, **options: Any
    ) -> Reply:
        assert options["run"] == self._run
        self._asked[f"{peer_id} {method}"] += 1
        with trio.fail_after(timeout):
            blob = {"blob": options["blob"]} if options.get("blob") else {}
            return await self._peers[peer_id](method, dict(body), **blob)


class Listed(HolderBook):
    """A book in which everybody stands for every block, and on record is who was entered by hand."""

    def __init__(self, core: Core, peers: Iterable[str]) -> None:
        super().__init__(core.link, core.clock, core.events.add)
        self._peers = list(peers)
        self.refreshed: list[list[int]] = []
        """Blocks whose records were asked for, one entry a time."""
        self.entered: list[BlockRecord] = []

    def peers(self, blocks: Iterable[int]) -> list[str]:
        return self._peers

    def holders(self, block: int, *, serving: bool = True) -> list[BlockRecord]:
        return [record for record in self.entered if record.block == block]

    async def refresh(self, blocks: Iterable[int]) -> None:
        self.refreshed.append(list(blocks))


class World:
    """A client's core that is connected to a swarm of functions."""

    def __init__(self, nursery: Any, manifest: Manifest, **peers: Answer) -> None:
        self.asked: Counter[str] = Counter()
        """How often, by ``"peer method"``."""
        self.core = Core(nursery)
        self.core._manifest = manifest
        self.core.link = Functions(nursery, manifest.digest, self.asked, peers)
        self.core.book = self.book = Listed(self.core, peers)


def but(honest: Answer, method: str, **words: Any) -> Answer:
    """A peer that does something else than ``honest`` when asked for ``method``."""

    async def answer(asked: str, body: dict[str, Any]) -> Reply:
        if asked != method:
            return await honest(asked, body)
        if "seconds" in words:
            await trio.sleep(words["seconds"])
            return await honest(asked, body)
        if "error" in words:
            raise RpcError(words["error"], words["error"])
        return words["reply"]

    return answer
