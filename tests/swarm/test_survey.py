"""What a client tells holders when it asks which states they have."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from blockswarm.dht.errors import RpcError
from blockswarm.swarm.core import OFFERS_SECONDS, USABLE_SECONDS, Core
from blockswarm.swarm.link import Link, Reply
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.messages import StateName, StatesRequest
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session import Session
from tests.swarm.answering import World


def name(number: int) -> StateName:
    return StateName(number, bytes([number]) * 32)


class Deaf(Link):
    """A link that takes down what is asked, and brings no answer."""

    def __init__(self) -> None:
        super().__init__(None)
        self.bodies: list[Mapping[str, Any]] = []

    async def call(self, peer_id: str, method: str, body: Mapping[str, Any], **_: Any) -> Reply:
        assert method == "states"
        self.bodies.append(body)
        raise RpcError("unreachable")


class Asked:
    """A core over a deaf link."""

    def __init__(self) -> None:
        self.manifest: Manifest = create_manifest(name="asked", now=0.0)
        self.core = Core(None)
        self.core._manifest = self.manifest
        self.core.link = self.link = Deaf()

    def session(self, pin: Pin) -> Session:
        return Session(self.core, pin, fixed=False, patience=None, report=CallReport("generate", "parallel"))

    async def survey(self, block: int) -> tuple[bytes, ...]:
        """Digests that the holder of ``block`` was told of."""
        send, _receive = trio.open_memory_channel[str](1)
        await self.core._ask_states("12D3KooWabc", block, send)
        return StatesRequest.parse(self.link.bodies[-1]).use


def test_a_survey_names_what_sessions_at_work_are_pinned_to_and_nothing_else() -> None:
    async def story() -> None:
        asked = Asked()
        assert await asked.survey(0) == ()
        first = asked.session(Pin(name(1), {0: name(2), 1: name(3)}))
        second = asked.session(Pin(name(1), {0: name(4)}))
        assert set(await asked.survey(0)) == {name(number).digest for number in (1, 2, 4)}
        assert set(await asked.survey(1)) == {name(1).digest, name(3).digest}
        assert first.pin != second.pin
        del first, second
        gc.collect()
        assert await asked.survey(0) == ()

    trio.run(story)


def test_a_session_waits_for_a_survey_only_when_nothing_recent_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a long line each survey costs two round trips, and what it finds is seldom new.

    Records live longer than offers: beside a session, too, only what is old is asked for again.
    """
    waited: list[tuple[float, int, int]] = []
    collected: list[list[int]] = []

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery, create_manifest(name="asked", now=0.0))

            async def refresh(blocks: Iterable[int]) -> None:
                world.book.refreshed.append(list(blocks))
                await trio.sleep(0.5)

            async def collect(blocks: Sequence[int]) -> None:
                collected.append(list(blocks))

            world.book.refresh = refresh
            monkeypatch.setattr(world.core, "_collect_offers", collect)
            for pause in (0.0, OFFERS_SECONDS / 2, OFFERS_SECONDS, USABLE_SECONDS + 1):
                await trio.sleep(pause)
                began = trio.current_time()
                await world.core.look_around()
                seconds = trio.current_time() - began
                await trio.sleep(1.0)  # what goes on beside it has ended
                waited.append((seconds, len(world.book.refreshed), len(collected)))
            nursery.cancel_scope.cancel()

    trio.run(story, clock=MockClock(autojump_threshold=0))
    assert waited == [(0.5, 1, 1), (0.0, 1, 1), (0.0, 1, 2), (0.5, 2, 3)]
