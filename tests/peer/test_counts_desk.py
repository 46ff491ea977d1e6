"""A holder of n-gram counts answers with the file's own rows, gives the file, and refuses what it cannot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.host import Host
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import COUNTS
from blockswarm.peer.counts_desk import MAX_WAITING, CountsDesk, counts_state
from blockswarm.peer.giving import serve_states
from blockswarm.peer.states import StateStore
from blockswarm.peer.transfer import StateFetcher, TransferError
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.messages import ChunkRequest, StateName, StatesReply
from tests.peer.hosts import running_hosts
from tests.swarm.counting import counted, section

LARGE = counted(np.random.default_rng(0).integers(0, 256, 1_000_000, np.uint8).tobytes(), order=6)
"""Four pieces."""
MANIFEST = create_manifest(
    name="counts",
    now=0.0,
    size=ModelConfig(dim=16, blocks=1, layers=1, heads=2, context=32),
    counts=section(LARGE),
)


@pytest.fixture
async def hosts() -> AsyncIterator[list[Host]]:
    """A newcomer, and two holders of the counts."""
    async with running_hosts(3, MANIFEST.digest) as hosts:
        for holder in hosts[1:]:
            store = StateStore(SystemClock())
            store.commit(counts_state(LARGE))
            serve_states(holder, store)
            CountsDesk(LARGE, SystemClock()).register(holder)
        yield hosts


def fetcher(host: Host, part: Any) -> StateFetcher:
    return StateFetcher(host.call, MANIFEST, lambda: 10, files={COUNTS: part}, stall=0.5)


async def test_rows_are_those_of_the_file(hosts: list[Host]) -> None:
    newcomer, holder, _ = hosts
    windows, take = (b"some text", b"and more of it"), (3, 0)
    request = CountsRequest(LARGE.digest, windows, take)
    reply = await newcomer.call(holder.peer_id, METHOD, request.to_body(), max_blob=1 << 20, timeout=10)
    rows = np.frombuffer(reply.blob, "<f4").reshape(-1, 256)
    wanted = [
        LARGE.log_probs(np.frombuffer(window, np.uint8)[None])[0, first:]
        for window, first in zip(windows, take, strict=True)
    ]
    np.testing.assert_array_equal(rows, np.concatenate(wanted))


async def test_it_says_what_it_has(hosts: list[Host]) -> None:
    newcomer, holder, _ = hosts
    reply = await newcomer.call(holder.peer_id, "states", {}, timeout=10)
    assert StatesReply.parse(reply.body) == StatesReply(COUNTS, (StateName(0, LARGE.digest),), ())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (CountsRequest(bytes(32), (b"abc",), (0,)).to_body(), "unknown-state"),
        ({"digest": LARGE.digest, "windows": [b"abc"], "take": [3]}, "bad-request"),
        ({"digest": LARGE.digest, "windows": [b"x" * 5000], "take": [0]}, "bad-request"),
        ({}, "bad-request"),
    ],
)
async def test_what_cannot_be_answered_is_refused(hosts: list[Host], body: dict[str, Any], code: str) -> None:
    newcomer, holder, _ = hosts
    with pytest.raises(RpcError) as caught:
        await newcomer.call(holder.peer_id, METHOD, body, max_blob=1 << 20, timeout=10)
    assert caught.value.code == code


async def test_too_many_at_a_time_are_sent_away(hosts: list[Host]) -> None:
    newcomer, holder, _ = hosts
    desk = CountsDesk(LARGE, SystemClock())
    desk.register(holder)
    go = threading.Event()
    blocked = desk._thread.submit(go.wait)  # nothing is computed meanwhile
    request = CountsRequest(LARGE.digest, (b"abc",), (0,)).to_body()

    async def ask() -> str:
        try:
            await newcomer.call(holder.peer_id, METHOD, request, max_blob=1 << 20, timeout=20)
        except RpcError as error:
            assert 0 <= error.detail["retry_after"] <= 10
            return error.code
        return "answered"

    asked = [asyncio.create_task(ask()) for _ in range(MAX_WAITING + 3)]
    first = asyncio.as_completed(asked, timeout=15)
    assert [await next(first) for _ in range(3)] == ["busy"] * 3  # before anything is computed
    go.set()
    blocked.result(10)
    assert sorted(await asyncio.gather(*asked)) == ["answered"] * MAX_WAITING + ["busy"] * 3
    desk.stop()
    with pytest.raises(RpcError, match="stops serving"):
        await newcomer.call(holder.peer_id, METHOD, request, max_blob=1 << 20, timeout=10)


async def test_the_file_is_fetched_onto_the_disk(hosts: list[Host], tmp_path: Any) -> None:
    newcomer, *holders = hosts
    part = tmp_path / "counts.part"
    state = await fetcher(newcomer, part).fetch(COUNTS, [holder.peer_id for holder in holders], seconds=30)
    assert (state.subject, state.round, state.digest) == (COUNTS, 0, LARGE.digest)
    assert part.read_bytes() == bytes(LARGE.data)


async def test_pieces_that_are_on_the_disk_are_not_fetched_again(hosts: list[Host], tmp_path: Any) -> None:
    newcomer, holder, _ = hosts
    part = tmp_path / "counts.part"
    damaged = bytearray(LARGE.data)
    damaged[(1 << 20) + 5] ^= 1
    part.write_bytes(damaged[:-100])
    honest = holder._server._methods["state.chunk"].handler
    asked: list[int] = []

    async def answer(request: Any) -> Any:
        asked.append(ChunkRequest.parse(request.body).index)
        return await honest(request)

    holder.register("state.chunk", answer)
    await fetcher(newcomer, part).fetch(COUNTS, [holder.peer_id], seconds=30)
    last = -(-LARGE.size // (1 << 20)) - 1
    assert sorted(asked) == [1, last]
    assert part.read_bytes() == bytes(LARGE.data)


async def test_other_counts_than_the_manifests_are_not_taken(hosts: list[Host], tmp_path: Any) -> None:
    newcomer, holder, _ = hosts
    store = StateStore(SystemClock())
    store.commit(counts_state(counted()))
    serve_states(holder, store)
    with pytest.raises(TransferError, match="values"):
        await fetcher(newcomer, tmp_path / "part").fetch(COUNTS, [holder.peer_id], seconds=10)
    assert list(tmp_path.iterdir()) == []
