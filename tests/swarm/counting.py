"""A swarm of functions whose manifest has n-gram counts, with holders of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import trio

from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord
from blockswarm.model.layout import CHUNK_BYTES, COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.swarm.counts.files import rows_of
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.link import Reply
from blockswarm.swarm.manifest_fields import Counts
from blockswarm.swarm.messages import StateHead, StateName, StatesReply
from tests.swarm.holding import Model, Swarm

TEXT = b"the quick brown fox jumps over the lazy dog and the cat sits on the mat while the rain falls down. " * 40


def counted(text: bytes = TEXT, order: int = 4) -> NgramModel:
    """The counts of a text."""
    return NgramModel(build_ngram_file(np.frombuffer(text, np.uint8), order=order))


def section(model: NgramModel, weight: float = 0.4) -> Counts:
    """What a manifest says of them."""
    return Counts(digest=model.digest.hex(), bytes=model.size, order=model.header.order, weight=weight)


class CountsHolder:
    """A peer that serves counts.

    Attributes
    ----------
    left : int
        Requests it still answers before it is gone; negative: for ever.
    wrong : bool
        Whether the pieces that it gives are wrong.
    """

    def __init__(self, counts: NgramModel) -> None:
        self.left = -1
        self.wrong = False
        self.seconds = 0.001
        self._counts = counts

    async def __call__(self, method: str, body: dict[str, Any], blob: bytes = b"") -> Reply:
        """Answer one request."""
        if not self.left:
            raise RpcError("unreachable", "gone")
        counts = self._counts
        if method == "states":
            return Reply(StatesReply(COUNTS, (StateName(0, counts.digest),), ()).to_body())
        self.left -= 1
        await trio.sleep(self.seconds)
        if method == "state.head":
            chunks = counts.chunk_digests
            return Reply(StateHead(0, counts.digest, 0, counts.size // 4, chunks, b"").to_body())
        if method == "state.chunk":
            chunk = bytes(counts.data[body["index"] * CHUNK_BYTES :][:CHUNK_BYTES])
            return Reply({}, bytes(len(chunk)) if self.wrong else chunk)
        assert method == METHOD
        return Reply({}, rows_of(counts, CountsRequest.parse(body)).tobytes())


class CountsSwarm(Swarm):
    """A swarm with holders of the counts beside those of the blocks; ``number`` of them."""

    def __init__(self, nursery: Any, model: Model, counts: NgramModel, *names: str, number: int = 1) -> None:
        super().__init__(nursery, model, *names)
        self.counts_holders = [CountsHolder(counts) for _ in range(number)]
        for holder in self.counts_holders:
            peer = Identity.ephemeral().peer_id
            self.core.link._peers[peer] = holder
            self.book._peers.append(peer)
            digest = counts.digest
            self.book.entered.append(
                BlockRecord(
                    run_id=model.manifest.run_id,
                    block=COUNTS,
                    peer_id=peer,
                    state="SERVING",
                    digest=digest,
                    embedding_digest=digest,
                    issued=1.0,
                    expires=2.0,
                )
            )
