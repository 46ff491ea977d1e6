"""A state of several chunks from several holders, whatever one of them does; virtual time, so nothing really waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from blockswarm.dht.identity import Identity
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import CHUNK_BYTES, chunk_digests, state_digest
from blockswarm.swarm import fetching
from blockswarm.swarm.errors import ClientError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.link import Reply
from blockswarm.swarm.manifest import EMBEDDING, create_manifest
from blockswarm.swarm.messages import StateHead
from tests.swarm import answering
from tests.swarm.answering import Answer, World
from tests.swarm.signing import certify

# One layer of width 288: a block of 1.5 million values, six chunks.
MANIFEST = create_manifest(
    name="fetching", now=0.0, size=ModelConfig(dim=288, blocks=1, layers=1, heads=8, context=16), round_seconds=60.0
)
SIGNERS = [Identity.ephemeral() for _ in range(3)]


def head_of(values: np.ndarray, round_number: int, samples: int, subject: int = 0) -> StateHead:
    digest = state_digest(values)
    certificate = certify(MANIFEST, SIGNERS, subject, round_number, digest, samples)
    return StateHead(round_number, digest, samples, values.size, tuple(chunk_digests(values)), certificate)


VALUES = np.random.default_rng(1).standard_normal(MANIFEST.parameters(0), dtype=np.float32)
HEAD = head_of(VALUES, 7, 7000)
OLDER = head_of(VALUES + 1, 6, 6000)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would run on while a thread works."""

    async def run_here(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)


async def honest(method: str, body: dict[str, Any]) -> Reply:
    """What a holder of the state answers."""
    if method == "state.head":
        return Reply(HEAD.to_body())
    begin = body["index"] * CHUNK_BYTES
    return Reply({}, VALUES.tobytes()[begin : begin + CHUNK_BYTES])


def fetched(subject: int = 0, **peers: Answer) -> tuple[np.ndarray | Exception, World, float]:
    """What comes of fetching a state from ``peers``, the world afterwards, and how many seconds it took."""

    async def main() -> tuple[np.ndarray | Exception, World, float]:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            world = World(nursery, MANIFEST, **peers)
            arrived: list[int] = []
            try:
                offered = await fetching.find(world.core, subject)
                found: np.ndarray | Exception = await fetching.fetch(world.core, offered, arrived.append)
                assert sum(arrived) == 4 * offered.head.values
            except ClientError as error:
                found = error
            return found, world, trio.current_time() - began

    outcome: tuple[np.ndarray | Exception, World, float] = trio.run(main, clock=MockClock(autojump_threshold=0))
    return outcome


def but(method: str, **words: Any) -> Answer:
    """An honest holder, except that it does something else when asked for ``method``."""
    return answering.but(honest, method, **words)


def test_all_holders_share_the_work() -> None:
    found, world, _ = fetched(a=honest, b=honest, c=honest)
    np.testing.assert_array_equal(found, VALUES)
    assert {name: world.asked[f"{name} state.chunk"] for name in "abc"} == {"a": 2, "b": 2, "c": 2}


def test_the_heaviest_state_that_is_certified_is_taken() -> None:
    forged = dict(HEAD.to_body(), samples=10**9)
    future = head_of(VALUES, 2**39, 10**9).to_body()
    found, world, _ = fetched(
        a=but("state.head", reply=Reply(OLDER.to_body())),
        b=honest,
        c=but("state.head", reply=Reply(forged)),
        d=but("state.head", reply=Reply(future)),
        e=but("state.head", reply=Reply(dict(HEAD.to_body(), chunks=[bytes(32)] * 6))),
    )
    np.testing.assert_array_equal(found, VALUES)
    told = "\n".join(event.text for event in world.core.events)
    assert "certificate is of another state" in told and "lies in the future" in told
    assert "do not hash to the state's digest" in told


def test_a_wrong_chunk_costs_its_sender_not_the_state() -> None:
    found, world, _ = fetched(a=but("state.chunk", reply=Reply({}, bytes(CHUNK_BYTES))), b=honest)
    np.testing.assert_array_equal(found, VALUES)
    assert [event.kind for event in world.core.events] == ["refused"]
    assert world.core.router.banned("a", now=1.0)


@pytest.mark.parametrize("error", ["unknown-state", "unreachable"])
def test_a_holder_that_leaves_or_moves_on_is_replaced(error: str) -> None:
    found, _, _ = fetched(a=but("state.chunk", error=error), b=honest)
    np.testing.assert_array_equal(found, VALUES)


def test_a_silent_holder_costs_seconds_not_the_deadline() -> None:
    found, _, seconds = fetched(a=but("state.chunk", seconds=1e6), b=honest)
    np.testing.assert_array_equal(found, VALUES)
    assert seconds < 30
    found, _, seconds = fetched(a=but("state.head", seconds=1e6), b=honest)
    np.testing.assert_array_equal(found, VALUES)
    assert seconds < 3


def test_a_state_nobody_gives_any_more_is_lost_and_every_reason_is_told() -> None:
    found, _, seconds = fetched(
        a=but("state.chunk", reply=Reply({}, b"short")), b=but("state.chunk", error="unknown-state")
    )
    assert isinstance(found, fetching.LostStateError)
    assert "block 0 of round 7" in str(found)
    assert "sent a wrong chunk" in str(found) and "unknown-state" in str(found)
    assert seconds < 30
    found, _, seconds = fetched(a=but("state.chunk", error="unreachable"))
    assert isinstance(found, fetching.LostStateError) and seconds < 30


def test_a_block_without_a_holder_is_named() -> None:
    found, _, _ = fetched()
    assert isinstance(found, NoHolderError) and found.block == 0
    found, _, _ = fetched(a=but("state.head", error="not-serving"))
    assert isinstance(found, NoHolderError) and "not-serving" in str(found)
    found, _, _ = fetched(EMBEDDING)
    assert "nobody gives the state of the embedding" in str(found)


def test_values_that_are_not_finite_are_refused_even_when_certified() -> None:
    values = VALUES.copy()
    values[5] = np.nan
    head = head_of(values, 7, 7000)

    async def answer(method: str, body: dict[str, Any]) -> Reply:
        begin = body.get("index", 0) * CHUNK_BYTES
        return Reply(head.to_body()) if method == "state.head" else Reply({}, values.tobytes()[begin:][:CHUNK_BYTES])

    found, _, _ = fetched(a=answer)
    assert isinstance(found, UntrustedAnswerError) and "not finite" in str(found)
