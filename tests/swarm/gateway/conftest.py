"""A real gateway on a port of this machine, over a real client of a swarm in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
import torch

from blockswarm.model.config import ModelConfig
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.async_client import AsyncSwarmClient
from blockswarm.swarm.gateway.app import Gateway
from blockswarm.swarm.gateway.key import ApiKey
from blockswarm.swarm.gateway.limits import Limits
from blockswarm.swarm.gateway.server import GatewayConfig, listen, serving, url_of
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.thread import TrioThread
from tests.swarm.holding import Holder, Model, Swarm

SMALL = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=32)


@pytest.fixture(scope="session")
def model() -> Model:
    """Two blocks that are not trained but have opinions."""
    torch.set_num_threads(1)
    manifest = create_manifest(name="test", now=0.0, size=SMALL, round_seconds=60.0, seed=7)

    def weights(subject: int) -> Float32:
        noise = np.random.default_rng(subject + 1).standard_normal(manifest.parameters(subject))
        return manifest.verify_genesis(subject) + (0.15 * noise).astype(np.float32)

    return Model(manifest, weights)


@dataclass
class Running:
    """A gateway, and whom it asks."""

    gateway: Gateway
    client: AsyncSwarmClient
    holders: dict[str, Holder]
    http: httpx.AsyncClient
    url: str
    key: str | None

    @property
    def run_id(self) -> str:
        return self.client.run_id

    async def ask(self, prompt: Any = "The ", **body: Any) -> httpx.Response:
        """A completion."""
        return await self.http.post("/v1/completions", json={"model": self.run_id, "prompt": prompt, **body})

    def openai(self, key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        """OpenAI's own client of it."""
        return openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key=key or self.key or "none", max_retries=0, **options
        )

    def slow(self, seconds: float) -> None:
        """From now on holders take that long for an answer."""
        for holder in self.holders.values():
            holder.seconds = lambda _: seconds

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to happen in this process."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - nothing tells when it is so
                await asyncio.sleep(0.005)


Start = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="session")
async def start(model: Model) -> AsyncIterator[Start]:
    """Starts gateways: ``await start(key="secret", concurrency=1)``."""
    async with starting(model) as begin:
        yield begin


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def running(model: Model) -> AsyncIterator[Running]:
    """A gateway with its usual limits, for all tests of a module: they leave it as it is."""
    async with starting(model) as begin:
        yield await begin()


@asynccontextmanager
async def starting(model: Model) -> AsyncIterator[Start]:
    """Gateways that end with this."""
    async with AsyncExitStack() as stack:

        async def begin(*, key: str | None = None, send_buffer: int | None = None, **limits: Any) -> Running:
            thread = TrioThread()

            async def make() -> Swarm:
                return Swarm(thread.nursery, model, "0a", "0b", "1a", "1b")

            swarm = await thread.run_async(make)
            client = await stack.enter_async_context(AsyncSwarmClient(thread, swarm.core))
            listener = listen("127.0.0.1", 0)
            stack.callback(listener.close)
            if send_buffer is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            config = GatewayConfig(peers=(), key=key and ApiKey(key), limits=Limits(**limits))
            url = url_of(listener)
            gateway, _ = await stack.enter_async_context(serving(client, config, listener))
            headers = {"authorization": f"Bearer {key}"} if key else {}
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=30))
            return Running(gateway, client, swarm.holders, http, url, key)

        yield begin
