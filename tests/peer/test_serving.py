"""A holder answers from the state that was asked for, exactly as its block would alone, and refuses what it cannot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from blockswarm.dht.errors import RpcError
from blockswarm.dht.host import Host
from blockswarm.model.mixing import sweep_noise
from blockswarm.peer.batching import pieces
from blockswarm.peer.giving import serve_manifest
from blockswarm.peer.serving_queue import MAX_WAITING_OF_CLIENT
from blockswarm.peer.states import State
from blockswarm.peer.trainer import TrainerStopped
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.memory import KEPT_READERS
from blockswarm.swarm.messages import StatesReply, StatesRequest
from tests.peer.holder import CONTEXT, DIM, MANIFEST, Holder, as_bytes, reader, refused, rows_of, trained
from tests.peer.hosts import running_hosts

# -- parallel readout ----------------------------------------------------------------------------------------------


async def test_the_answer_is_the_blocks_own_prediction_for_every_window_from_its_take_on() -> None:
    holder = Holder(1)
    windows = (b"the cat sat", b"on", b"the mat and")
    answer = rows_of(await holder.call("logprobs", holder.logprobs(*windows, take=(0, 1, 8))))
    alone = reader(holder.block, holder.embedding)
    expected = [alone.log_probs(as_bytes(window))[0] for window in windows]
    np.testing.assert_allclose(answer, np.concatenate([expected[0], expected[1][1:], expected[2][8:]]), atol=1e-5)
    np.testing.assert_allclose(np.exp(answer.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


async def test_an_earlier_certified_state_is_answered_from_that_state() -> None:
    holder = Holder(0)
    oldest, oldest_embedding = holder.store.recent(0)[-1], holder.store.recent(EMBEDDING)[-1]
    body = holder.logprobs(b"hello", digest=oldest.digest, embedding_digest=oldest_embedding.digest)
    expected = reader(oldest, oldest_embedding).log_probs(as_bytes(b"hello"))[0]
    np.testing.assert_allclose(rows_of(await holder.call("logprobs", body)), expected, atol=1e-5)


async def test_the_untrained_model_can_always_be_asked_for() -> None:
    holder = Holder(0)
    body = holder.logprobs(
        b"hello", digest=MANIFEST.genesis_digest(0), embedding_digest=MANIFEST.genesis_digest(EMBEDDING)
    )
    rows = rows_of(await holder.call("logprobs", body))
    np.testing.assert_allclose(rows, -np.log(256), atol=1e-3)  # it predicts nothing yet


async def test_the_untrained_model_is_computed_once_however_many_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, compute = [], State.genesis

    def counted(manifest: Manifest, subject: int) -> State:
        made.append(subject)
        return compute(manifest, subject)

    monkeypatch.setattr(State, "genesis", counted)
    holder = Holder(0)
    body = holder.logprobs(
        b"hello", digest=MANIFEST.genesis_digest(0), embedding_digest=MANIFEST.genesis_digest(EMBEDDING)
    )
    await asyncio.gather(*(holder.call("logprobs", body) for _ in range(4)))
    assert sorted(made) == [EMBEDDING, 0]


async def test_a_large_request_is_computed_in_small_pieces_and_comes_back_in_order() -> None:
    sizes: list[int] = []

    async def counting(work: Callable[[], Any]) -> Any:
        result = await asyncio.to_thread(work)
        sizes.append(len(result))
        return result

    holder = Holder(0, worker=counting)
    windows = tuple(bytes([65 + index % 26]) * (CONTEXT if index % 3 else 7) for index in range(60))
    answer = rows_of(await holder.call("logprobs", holder.logprobs(*windows)))
    alone = reader(holder.block, holder.embedding)
    expected = np.concatenate([alone.log_probs(as_bytes(window))[0] for window in windows])
    np.testing.assert_allclose(answer, expected, atol=1e-5)
    assert len(sizes) > 2
    assert max(sizes) * CONTEXT <= 1024


def test_pieces_hold_windows_of_one_length_and_every_window_once() -> None:
    windows = [b"x" * length for length in (5, 2000, 5, 2, 2000, 5)]
    cut = pieces(windows)
    assert sorted(sum(cut, [])) == [*range(6)]  # noqa: RUF017 - a handful
    assert all(len({len(windows[index]) for index in part}) == 1 for part in cut)
    assert [1] in cut  # too long to share


# -- sweep ---------------------------------------------------------------------------------------------------------


async def test_the_sweep_travels_through_both_blocks_as_it_would_in_one_place() -> None:
    first, second = Holder(0), Holder(1)
    windows, starts, take = (b"abcdef", b"xyz"), (0, 64), (2, 0)
    reply = await first.call("sweep", first.sweep(*windows, starts=starts, take=take))
    assert reply.body == {"last": False}
    z = rows_of(reply, DIM)
    reply = await second.call("sweep", second.sweep(*windows, starts=starts, take=take), z.tobytes())
    assert reply.body == {"last": True}
    answer = rows_of(reply)

    expected = []
    for window, start, skip in zip(windows, starts, take, strict=True):
        x, noise = as_bytes(window), sweep_noise(7, start, len(window), DIM)[None]
        _, stepped = reader(first.block, first.embedding).sweep_step(x, noise)
        assert stepped is not None
        rows, _ = reader(second.block, second.embedding).sweep_step(x, stepped)
        expected.append(rows[0, skip:])
    np.testing.assert_allclose(answer, np.concatenate(expected), atol=1e-4)


async def test_z_of_the_wrong_length_or_not_finite_is_refused_before_any_work() -> None:
    holder = Holder(1)
    body = holder.sweep(b"abc", starts=(0,), take=(0,))
    await refused(holder.call("sweep", body, bytes(4 * 3 * DIM - 4)), "bad-request", "z: 188 bytes, 192 are due")
    await refused(holder.call("sweep", body, bytes(4 * 3 * DIM + 4)), "too-large")
    nan = np.full(3 * DIM, np.nan, dtype=np.float32).tobytes()
    await refused(holder.call("sweep", body, nan), "bad-request", "not all values are finite")
    first = Holder(0)
    await refused(first.call("sweep", first.sweep(b"abc", starts=(0,), take=(0,)), bytes(4)), "too-large")


# -- refusals ------------------------------------------------------------------------------------------------------


async def test_a_state_that_is_gone_is_refused_with_what_there_is_instead() -> None:
    holder = Holder(1)
    for changes in ({"digest": bytes(32)}, {"embedding_digest": bytes(32)}):
        refusal = await refused(holder.call("logprobs", holder.logprobs(b"a", **changes)), "unknown-state")
        offer = StatesReply.parse(refusal.detail)
        assert [name.round for name in offer.states] == [3, 2, 1]
        assert offer == StatesReply.parse((await holder.call("states", {})).body)


async def test_another_block_or_none_is_refused() -> None:
    holder = Holder(1)
    await refused(holder.call("logprobs", holder.logprobs(b"a", block=0)), "not-serving", "serves block 1, not 0")
    holder.desk.block = None
    await refused(holder.call("logprobs", holder.logprobs(b"a")), "not-serving")
    await refused(holder.call("states", {}), "not-serving")


async def test_a_window_longer_than_the_context_is_refused() -> None:
    holder = Holder(1)
    body = holder.logprobs(b"a", b"x" * (CONTEXT + 1))
    await refused(holder.call("logprobs", body), "bad-request", "33 bytes, the model's context is 32")
    await refused(holder.call("logprobs", {"block": 1}), "bad-request", "digest: missing")


async def test_more_requests_than_can_wait_are_told_when_to_come_back() -> None:
    gate = asyncio.Event()

    async def stuck(work: Callable[[], Any]) -> Any:
        await gate.wait()
        return work()

    holder = Holder(0, worker=stuck)
    calls = [asyncio.create_task(holder.call("logprobs", holder.logprobs(b"a"))) for _ in range(MAX_WAITING_OF_CLIENT)]
    await asyncio.sleep(0)
    refusal = await refused(holder.call("logprobs", holder.logprobs(b"a")), "busy")
    assert 0 < refusal.detail["retry_after"] <= 10
    gate.set()
    assert len(await asyncio.gather(*calls)) == MAX_WAITING_OF_CLIENT
    assert holder.desk.answered == MAX_WAITING_OF_CLIENT
    await holder.call("logprobs", holder.logprobs(b"a"))  # room again


async def test_a_caller_that_gives_up_frees_its_place() -> None:
    async def never(work: Callable[[], Any]) -> Any:
        await asyncio.sleep(3600)

    holder = Holder(0, worker=never)
    for _ in range(2 * MAX_WAITING_OF_CLIENT):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await holder.call("logprobs", holder.logprobs(b"a"))


async def test_a_worker_that_has_ended_is_no_internal_error() -> None:
    async def ended(work: Callable[[], Any]) -> Any:
        raise TrainerStopped("the training thread has ended")

    holder = Holder(0, worker=ended)
    await refused(holder.call("logprobs", holder.logprobs(b"a")), "not-serving", "stops serving")


async def test_only_a_few_readers_are_kept() -> None:
    holder = Holder(0)
    for state in holder.store.recent(0):
        for embedding in holder.store.recent(EMBEDDING):
            body = holder.logprobs(b"a", digest=state.digest, embedding_digest=embedding.digest)
            await holder.call("logprobs", body)
    assert len(holder.desk._readers) == KEPT_READERS


async def test_asking_for_a_state_keeps_it_while_rounds_go_on() -> None:
    holder = Holder(0)
    for number in range(4, 9):
        await holder.call("logprobs", holder.logprobs(b"a"))  # pinned to round 3
        holder.store.commit(trained(0, number))
        holder.store.commit(trained(EMBEDDING, number))
    assert len(rows_of(await holder.call("logprobs", holder.logprobs(b"a")))) == 1


# -- over the network ----------------------------------------------------------------------------------------------


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Host, Host]]:
    async with running_hosts(2, MANIFEST.digest) as (client, server):
        yield client, server


async def test_a_survey_that_names_a_pinned_state_keeps_it_at_a_spare_that_is_never_asked() -> None:
    holder = Holder(0)
    pinned, embedding = holder.store.recent(0)[-1], holder.store.recent(EMBEDDING)[-1]
    survey = StatesRequest((pinned.digest, embedding.digest)).to_body()
    for number in range(4, 9):
        named = StatesReply.parse((await holder.call("states", survey)).body)
        assert pinned.name in named.states and embedding.name in named.embedding
        holder.store.commit(trained(0, number))
        holder.store.commit(trained(EMBEDDING, number))
    answer = holder.logprobs(b"hello", digest=pinned.digest, embedding_digest=embedding.digest)
    assert rows_of(await holder.call("logprobs", answer)).shape == (5, 256)


async def test_it_all_works_over_a_real_connection(pair: tuple[Host, Host]) -> None:
    client, server = pair
    holder = Holder(1)
    holder.desk.register(server)
    serve_manifest(server, MANIFEST)

    reply = await client.call(server.peer_id, "manifest", {"run_id": MANIFEST.run_id}, max_blob=1 << 16, timeout=10.0)
    assert Manifest.from_canonical(bytes(reply.blob)) == MANIFEST
    with pytest.raises(RpcError, match="unknown-run"):
        await client.call(server.peer_id, "manifest", {"run_id": "other-0123456789ab"}, timeout=10.0)

    offer = StatesReply.parse((await client.call(server.peer_id, "states", {}, timeout=10.0)).body)
    assert offer.block == 1
    assert offer.states[0] == holder.block.name

    body = holder.logprobs(b"hello")
    reply = await client.call(server.peer_id, "logprobs", body, max_blob=5 * 1024, timeout=10.0)
    expected = reader(holder.block, holder.embedding).log_probs(as_bytes(b"hello"))[0]
    np.testing.assert_allclose(rows_of(reply), expected, atol=1e-5)

    body = holder.sweep(b"abc", starts=(0,), take=(0,))
    z = sweep_noise(1, 0, 3, DIM).tobytes()
    reply = await client.call(server.peer_id, "sweep", body, blob=z, max_blob=3 * 1024, timeout=10.0)
    assert rows_of(reply).shape == (3, 256)
    with pytest.raises(RpcError) as caught:
        await client.call(server.peer_id, "sweep", body, blob=z + bytes(4), max_blob=3 * 1024, timeout=10.0)
    assert caught.value.code == "too-large"
    with pytest.raises(RpcError) as caught:
        gone = holder.logprobs(b"a", digest=bytes(32))
        await client.call(server.peer_id, "logprobs", gone, max_blob=1024, timeout=10.0)
    assert StatesReply.parse(caught.value.detail) == offer


async def test_the_event_loop_stays_free_while_an_answer_is_computed() -> None:
    async def slow(work: Callable[[], Any]) -> Any:
        def computed() -> Any:
            time.sleep(0.2)
            return work()

        return await asyncio.to_thread(computed)

    holder = Holder(0, worker=slow)
    answer = asyncio.create_task(holder.call("logprobs", holder.logprobs(b"a")))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10
