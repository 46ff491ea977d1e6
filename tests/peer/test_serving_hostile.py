"""Hostile callers of a real holder over loopback: they are refused, and an honest client is answered meanwhile.

Bytes that are no requests, slow readers and streams that end early stand in ``tests/dht/test_rpc_hostile.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from blockswarm.clock import SystemClock
from blockswarm.dht import frames, rpc
from blockswarm.dht.control import ControlError
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.host import Host
from blockswarm.model.config import ModelConfig
from blockswarm.model.readout import BlockReader
from blockswarm.peer.giving import serve_manifest, serve_states
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import LogprobsRequest, StatesRequest, SweepRequest
from blockswarm.swarm.session_messages import SessionRequest, text_check
from tests.dht.world import eventually
from tests.methods import Methods
from tests.peer.hosts import running_hosts

torch.set_num_threads(1)

# One trio of hosts for the whole file: starting them is most of the time.
pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT, DIM, BLOCK = 32, 16, 1
MANIFEST = create_manifest(
    name="hostile",
    now=0.0,
    size=ModelConfig(dim=DIM, blocks=2, layers=1, heads=2, context=CONTEXT),
    round_seconds=20.0,
)
STATES = {subject: State.genesis(MANIFEST, subject) for subject in (BLOCK, EMBEDDING)}
PINS = STATES[BLOCK].digest, STATES[EMBEDDING].digest
TEXT = b"the honest client's text"

PATIENCE = 20.0
"""Seconds that an honest call may take while others are at it: generous, for tests share their machine."""


async def in_thread(work: Any) -> Any:
    return await asyncio.to_thread(work)


def new_desk() -> ServingDesk:
    """The desk of a holder of block 1."""
    store = StateStore(SystemClock())
    for state in STATES.values():
        store.commit(state)
    return ServingDesk(MANIFEST, store, in_thread, SystemClock(), block=BLOCK)


@dataclass
class World:
    """A holder, one who is up to something, and one who only wants an answer."""

    holder: Host
    attacker: Host
    honest: Host
    expected: bytes

    async def answered(self) -> float:
        """Ask as an honest client does, again while the holder is busy or a stream breaks; seconds until the answer."""
        began = time.monotonic()
        body = LogprobsRequest(BLOCK, *PINS, (TEXT,), (0,)).to_body()
        while True:
            left = began + PATIENCE - time.monotonic()
            try:
                reply = await self.honest.call(
                    self.holder.peer_id, "logprobs", body, max_blob=1 << 20, timeout=max(0.1, left)
                )
            except RpcError as error:
                # Under many streams p2pd refuses some, no matter whose; a client opens another.
                if error.code not in ("busy", "unreachable") or left < 1:
                    raise
                await asyncio.sleep(0.1)
                continue
            assert bytes(reply.blob) == self.expected
            return time.monotonic() - began


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    reader = BlockReader(
        MANIFEST.model, MANIFEST.recipe, BLOCK, *(STATES[subject].values for subject in (BLOCK, EMBEDDING))
    )
    expected = reader.log_probs(np.frombuffer(TEXT, np.uint8)[None]).astype("<f4").tobytes()
    async with running_hosts(3, MANIFEST.digest) as (holder, attacker, honest):
        serve_manifest(holder, MANIFEST)
        new_desk().register(holder)
        store = StateStore(SystemClock())
        for state in STATES.values():
            store.commit(state)
        serve_states(holder, store)
        made = World(holder, attacker, honest, expected)
        await made.answered()
        yield made


async def code_of(call: Awaitable[Any]) -> str:
    """How a call ended: the code of its error, or ``answered``."""
    try:
        await call
    except RpcError as error:
        return error.code
    return "answered"


def logprobs(**changes: Any) -> dict[str, Any]:
    return LogprobsRequest(BLOCK, *PINS, (b"abc",), (0,)).to_body() | changes


def sweep(**changes: Any) -> dict[str, Any]:
    return SweepRequest(BLOCK, *PINS, (b"abc",), (0,), (0,), 7).to_body() | changes


def session(**changes: Any) -> dict[str, Any]:
    return SessionRequest(b"n" * 16, BLOCK, *PINS, at=0, new=b"abc", first=2, check=b"").to_body() | changes


Z = bytes(4 * 3 * DIM)
REFUSED: dict[str, tuple[str, dict[str, Any], bytes, str]] = {
    "a window longer than the context": ("logprobs", logprobs(windows=[bytes(CONTEXT + 1)]), b"", "bad-request"),
    "more windows than allowed": ("logprobs", logprobs(windows=[b"a"] * 65, take=[0] * 65), b"", "bad-request"),
    "more positions than allowed": (
        "logprobs",
        logprobs(windows=[bytes(4096)] * 64, take=[0] * 64),
        b"",
        "bad-request",
    ),
    "a hundred thousand windows": ("logprobs", logprobs(windows=[b""] * 40_000), b"", "bad-request"),
    "text in place of bytes": ("logprobs", logprobs(windows=["abc"]), b"", "bad-request"),
    "a map in place of a list": ("logprobs", logprobs(windows={"0": b"abc"}), b"", "bad-request"),
    "a truth value in place of a number": ("logprobs", logprobs(block=True), b"", "bad-request"),
    "a row past the window": ("logprobs", logprobs(take=[3]), b"", "bad-request"),
    "a negative row": ("logprobs", logprobs(take=[-1]), b"", "bad-request"),
    "a digest of a wrong length": ("logprobs", logprobs(digest=bytes(31)), b"", "bad-request"),
    "a state that nobody made": ("logprobs", logprobs(digest=bytes(32)), b"", "unknown-state"),
    "another embedding": ("logprobs", logprobs(embedding_digest=bytes(32)), b"", "unknown-state"),
    "the digests of block and embedding changed over": (
        "logprobs",
        logprobs(digest=PINS[1], embedding_digest=PINS[0]),
        b"",
        "unknown-state",
    ),
    "another block": ("logprobs", logprobs(block=0), b"", "not-serving"),
    "a key that nobody knows": ("logprobs", logprobs(x=1), b"", "bad-request"),
    "nothing": ("logprobs", {}, b"", "bad-request"),
    "a forged position": ("sweep", sweep(starts=[2**60]), Z, "bad-request"),
    "a negative position": ("sweep", sweep(starts=[-1]), Z, "bad-request"),
    "a position too few": ("sweep", sweep(starts=[]), Z, "bad-request"),
    "a z too short": ("sweep", sweep(), Z[:-4], "bad-request"),
    "a z too long": ("sweep", sweep(), Z + bytes(4), "too-large"),
    "a blob where none belongs": ("logprobs", logprobs(), bytes(10), "too-large"),
    "a text that was never told": (
        "session.logprobs",
        session(at=2, new=b"c", check=text_check(b"ab")),
        b"",
        "unknown-session",
    ),
    "a text far away": ("session.logprobs", session(at=2**52, first=2**52, check=bytes(8)), b"", "unknown-session"),
    "a row before the text that is told": (
        "session.logprobs",
        session(at=90, first=3, check=bytes(8)),
        b"",
        "unknown-session",
    ),
    "a row after the text": ("session.logprobs", session(first=3), b"", "bad-request"),
    "a text that skips its window": ("session.logprobs", session(first=90, new=bytes(100)), b"", "bad-request"),
    "a text of many windows": ("session.logprobs", session(first=0, new=bytes(4000)), b"", "bad-request"),
    "a session without a name": ("session.logprobs", session(session=b""), b"", "bad-request"),
    "a session with a seed": ("session.logprobs", session(seed=1), b"", "bad-request"),
    "a chunk that does not exist": (
        "state.chunk",
        {"subject": BLOCK, "digest": PINS[0], "index": 1000},
        b"",
        "bad-request",
    ),
    "a subject that does not exist": ("state.head", {"subject": 77}, b"", "unknown-state"),
    "more states in use than allowed": ("states", {"use": [bytes(32)] * 17}, b"", "bad-request"),
    "a manifest of another run": ("manifest", {"run_id": "other-0123456789ab"}, b"", "unknown-run"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_answered_is_refused_by_name(world: World, what: str) -> None:
    method, body, blob, code = REFUSED[what]
    call = world.attacker.call(world.holder.peer_id, method, body, blob=blob, max_blob=1 << 20, timeout=PATIENCE)
    assert await code_of(call) == code


async def test_a_call_of_another_run_is_refused_before_it_is_read(world: World) -> None:
    world.attacker.set_run(b"x" * 32)
    try:
        call = world.attacker.call(world.holder.peer_id, "logprobs", logprobs(), max_blob=1 << 20, timeout=PATIENCE)
        assert await code_of(call) == "wrong-run"
    finally:
        world.attacker.set_run(MANIFEST.digest)


async def test_a_flood_of_bad_requests_does_not_keep_the_honest_from_their_answers(world: World) -> None:
    calls = [REFUSED[what] for what in REFUSED] * 20

    async def flood() -> list[str]:
        limit = asyncio.Semaphore(24)

        async def one(method: str, body: dict[str, Any], blob: bytes) -> str:
            async with limit:
                return await code_of(
                    world.attacker.call(world.holder.peer_id, method, body, blob=blob, max_blob=1 << 20, timeout=60)
                )

        return await asyncio.gather(*(one(method, body, blob) for method, body, blob, _ in calls))

    flooding = asyncio.create_task(flood())
    waits = [await world.answered() for _ in range(8)]
    assert max(waits) < PATIENCE
    ended = await flooding
    assert set(ended) <= {code for *_, code in calls} | {"busy"}
    server = world.holder._server
    await eventually(lambda: server._calls.total() == 0 and server._blob_bytes == 0)


@pytest.mark.timeout(300)
async def test_ten_thousand_half_open_streams_take_no_room_and_no_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "IDLE_SECONDS", 5.0)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    most, opened, stop = 0, 0, asyncio.Event()

    async def hold() -> None:
        nonlocal most, opened
        while opened < 10_000 and not stop.is_set():
            opened += 1
            with contextlib.suppress(ControlError, OSError, TimeoutError, asyncio.IncompleteReadError):
                async with world.attacker.control.open_stream(world.holder.peer_id, frames.PROTOCOL_ID) as (
                    reader,
                    writer,
                ):
                    writer.write(b"\x00\x00")  # half of a length, and nothing more
                    most = max(most, world.holder._server._streams[world.attacker.peer_id])
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(2.0):
                            await reader.read(1)  # until the holder has had enough

    holding = [asyncio.create_task(hold()) for _ in range(200)]
    try:
        waits = []
        while not all(task.done() for task in holding):
            waits.append(await world.answered())
            await asyncio.sleep(0.2)
    finally:
        stop.set()
        await asyncio.gather(*holding, return_exceptions=True)
    assert opened == 10_000 and max(waits) < PATIENCE
    assert most <= rpc.MAX_STREAMS_PER_PEER, "streams that the holder keeps at a time"
    assert process.memory_info().rss - before < 100 << 20


async def test_ten_thousand_sessions_with_pins_of_their_own_leave_nothing_behind() -> None:
    desk = new_desk()
    methods = Methods()
    desk.register(methods)

    async def session(number: int) -> None:
        digest = number.to_bytes(32, "big")
        with pytest.raises(RpcRefused):
            await methods.ask("peer", "logprobs", logprobs(digest=digest))
        await methods.ask("peer", "states", StatesRequest((digest,)).to_body())

    await session(0)
    tracemalloc.start()
    try:
        for number in range(1, 10_000):
            await session(number)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
