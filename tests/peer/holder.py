"""A holder's desk with three rounds of states behind one block, called without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from blockswarm.clock import Clock, SystemClock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Handler, Reply
from blockswarm.model.config import ModelConfig
from blockswarm.model.readout import BlockReader
from blockswarm.model.windows import window_start
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import LogprobsRequest, SweepRequest
from blockswarm.swarm.session_messages import SessionRequest, text_check
from tests.methods import Methods

torch.set_num_threads(1)

CONTEXT, DIM = 32, 16
MANIFEST = create_manifest(
    name="serving",
    now=0.0,
    size=ModelConfig(dim=DIM, blocks=2, layers=1, heads=2, context=CONTEXT),
    round_seconds=20.0,
)


def trained(subject: int, round_number: int) -> State:
    """A state off its genesis by a little noise, as training leaves it."""
    rng = np.random.default_rng(100 * round_number + subject + 1)
    values = MANIFEST.verify_genesis(subject)
    values += 0.05 * rng.standard_normal(values.size, dtype=np.float32)
    return State.make(subject, round_number, values, samples=64 * round_number)


def reader(block_state: State, embedding: State) -> BlockReader:
    return BlockReader(
        MANIFEST.model, MANIFEST.recipe, block_state.subject, block_state.values, embedding.values, device="cpu"
    )


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


class Holder(Methods):
    """A desk with three rounds of states behind one block, called as the network calls it."""

    def __init__(self, block: int, worker: Any = in_thread, clock: Clock | None = None) -> None:
        super().__init__()
        clock = clock or SystemClock()
        self.store = StateStore(clock)
        for number in (1, 2, 3):
            self.store.commit(trained(block, number))
            self.store.commit(trained(EMBEDDING, number))
        self.block = self.store.recent(block)[0]
        self.embedding = self.store.recent(EMBEDDING)[0]
        self.desk = ServingDesk(MANIFEST, self.store, worker, clock, block=block)
        self.desk.register(self)

    def register(self, method: str, handler: Handler, *, run_bound: bool = True, **limits: Any) -> None:
        assert run_bound
        super().register(method, handler, **limits)

    async def call(self, method: str, body: dict[str, Any], blob: bytes = b"", *, caller: str = "caller") -> Reply:
        return await self.ask(caller, method, body, blob)

    def logprobs(self, *windows: bytes, take: tuple[int, ...] | None = None, **changes: Any) -> dict[str, Any]:
        return (
            LogprobsRequest(
                self.block.subject,
                self.block.digest,
                self.embedding.digest,
                windows,
                take or (0,) * len(windows),
            ).to_body()
            | changes
        )

    def in_session(self, text: bytes, *, told: int = 0, **changes: Any) -> dict[str, Any]:
        """The last row of ``text``, of which this holder has been told ``told`` bytes."""
        first = len(text) - 1
        start = window_start(first, CONTEXT)
        at = max(start, told)
        states = self.block.digest, self.embedding.digest
        request = SessionRequest(
            b"s" * 16, self.block.subject, *states, at=at, new=text[at:], first=first, check=text_check(text[start:at])
        )
        return request.to_body() | changes

    def sweep(self, *windows: bytes, starts: tuple[int, ...], take: tuple[int, ...], seed: int = 7) -> dict[str, Any]:
        return SweepRequest(
            self.block.subject, self.block.digest, self.embedding.digest, windows, starts, take, seed
        ).to_body()


def rows_of(reply: Reply, columns: int = 256) -> np.ndarray:
    return np.frombuffer(reply.blob, dtype="<f4").reshape(-1, columns)


def as_bytes(*windows: bytes) -> np.ndarray:
    return np.stack([np.frombuffer(window, dtype=np.uint8) for window in windows])


async def refused(call: Any, code: str, words: str = "") -> RpcRefused:
    with pytest.raises(RpcRefused) as caught:
        await call
    assert caught.value.code == code
    assert words in caught.value.text
    return caught.value
