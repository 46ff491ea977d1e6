"""Sessions from the network's side: the rows of the whole text, for what is new of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from blockswarm.clock import ManualClock
from blockswarm.model.windows import window_start
from blockswarm.peer.serving import TIDY_SECONDS
from blockswarm.peer.sessions import IDLE_SECONDS
from blockswarm.swarm.manifest import EMBEDDING
from blockswarm.swarm.memory import cache_bytes
from tests.peer.holder import CONTEXT, MANIFEST, Holder, as_bytes, reader, refused, rows_of, trained


async def test_a_session_gives_the_rows_of_the_whole_text_and_is_sent_what_is_new() -> None:
    holder = Holder(1)
    text = bytes(range(65, 91)) * 2
    told = 0
    for end in (20, 21, 25, 33, 40, 52):
        rows = rows_of(await holder.call("session.logprobs", holder.in_session(text[:end], told=told)))
        window = text[window_start(end - 1, CONTEXT) : end]
        expected = reader(holder.block, holder.embedding).log_probs(as_bytes(window))[0, -1:]
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        told = end
    figures = holder.desk.figures()
    assert figures.pop("seconds") >= 0 and figures.pop("cpu_seconds") >= 0
    room = cache_bytes(MANIFEST.model) + 20
    assert figures == {"answers": 6, "refused": 0, "sessions": 1, "session_bytes": room}


async def test_sessions_of_many_clients_are_computed_together() -> None:
    jobs = []

    async def counting(work: Callable[[], Any]) -> Any:
        jobs.append(work)
        return await asyncio.to_thread(work)

    holder = Holder(1, worker=counting)
    texts = {f"client {number}": bytes([number + 65]) * 12 for number in range(8)}
    replies = await asyncio.gather(
        *(holder.call("session.logprobs", holder.in_session(text), caller=name) for name, text in texts.items())
    )
    assert len(jobs) == 1
    for reply, text in zip(replies, texts.values(), strict=True):
        expected = reader(holder.block, holder.embedding).log_probs(as_bytes(text))[0, -1:]
        np.testing.assert_allclose(rows_of(reply), expected, atol=1e-5)


async def test_a_session_that_is_not_known_is_refused_and_the_text_can_be_sent_again() -> None:
    holder = Holder(1)
    await refused(holder.call("session.logprobs", holder.in_session(b"some text", told=4)), "unknown-session")
    await holder.call("session.logprobs", holder.in_session(b"some text"))
    on = holder.in_session(b"some text!", told=9)
    await refused(holder.call("session.logprobs", on, caller="eve"), "unknown-session")
    await refused(holder.call("session.logprobs", on | {"block": 0}), "not-serving")
    await refused(holder.call("session.logprobs", on | {"digest": bytes(32)}), "unknown-state")
    await refused(holder.call("session.logprobs", on | {"at": 2, "first": 40, "new": b"x" * 60}), "bad-request", "at: ")
    await refused(holder.call("session.logprobs", on | {"new": b"x" * 1100}), "bad-request", "at most 1024")
    await refused(holder.call("session.logprobs", on | {"check": b""}), "bad-request", "check: ")
    assert len(rows_of(await holder.call("session.logprobs", on))) == 1


async def test_sessions_go_with_their_states_and_when_nobody_asks_any_more() -> None:
    async def at_once(work: Callable[[], Any]) -> Any:
        return work()

    clock = ManualClock()
    holder = Holder(1, at_once, clock)

    async def sessions_after(seconds: float) -> int:
        for _ in range(round(seconds / TIDY_SECONDS)):
            await clock.advance(TIDY_SECONDS)
            for _ in range(20):
                await asyncio.sleep(0)
        return int(holder.desk.figures()["sessions"])

    await holder.call("session.logprobs", holder.in_session(b"some text"))
    for number in range(4, 9):
        holder.store.commit(trained(1, number))  # the state of the session stays, because it is in use
    assert await sessions_after(TIDY_SECONDS) == 1
    holder.store.forget(1)
    assert await sessions_after(TIDY_SECONDS) == 0

    genesis = {"digest": MANIFEST.genesis_digest(1), "embedding_digest": MANIFEST.genesis_digest(EMBEDDING)}
    await holder.call("session.logprobs", holder.in_session(b"the untrained one", **genesis))
    assert await sessions_after(IDLE_SECONDS - TIDY_SECONDS) == 1  # no volunteer holds that state, yet it can be asked
    assert await sessions_after(2 * TIDY_SECONDS) == 0
    assert holder.desk.figures()["session_bytes"] == 0
    holder.desk.close()


async def test_a_request_whose_cache_is_gone_takes_the_place_of_all_that_is_computed_again() -> None:
    holder = Holder(1)
    text = b"a text of thirty bytes, or more"
    await holder.call("session.logprobs", holder.in_session(text[:30]))
    for held in holder.desk._sessions._held.values():
        held.caches.clear()
    places: list[int] = []
    take = holder.desk._queue.place
    holder.desk._queue.place = lambda client, work, size: (places.append(work), take(client, work, size))[1]
    await holder.call("session.logprobs", holder.in_session(text[:31], told=30))
    await holder.call("session.logprobs", holder.in_session(text[:31] + b"!", told=31))
    assert places == [31, 1]
    holder.desk.close()
