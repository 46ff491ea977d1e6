"""Nobody waits without bound: places are few, clients take turns, and answers get their share of the worker's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from blockswarm.clock import ManualClock
from blockswarm.dht.errors import RpcRefused
from blockswarm.peer.serving_queue import (
    MAX_ANSWER_BYTES,
    MAX_WAITING,
    MAX_WAITING_OF_CLIENT,
    REQUEST_SECONDS,
    SAVED_SECONDS,
    TOGETHER,
    ServingEnded,
    ServingQueue,
)
from blockswarm.swarm.policy.turns import answering_rate


class Bench:
    """A queue whose worker takes ``seconds`` for everything it does, on a clock moved by hand."""

    def __init__(self, seconds: float = 0.01, share: float = 1.0) -> None:
        self.clock = ManualClock()
        self.seconds = seconds
        self.share = share
        self.slower = 1.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[list[str]] = []
        self.queue = ServingQueue(self.work, self.clock, lambda: self.share, processor=self.processor)

    def processor(self) -> float:
        """All of the worker's time is processor time, unless the machine is ``slower`` by others' work."""
        return self.clock.now() / self.slower

    async def work(self, job: Callable[[], Any]) -> Any:
        await self.gate.wait()
        return job()

    def compute(self, items: Sequence[str]) -> list[str]:
        self.batches.append(list(items))
        self.clock._now += self.seconds
        return [item.upper() for item in items]

    async def ask(self, client: str, item: str = "a", *, group: str = "states", answer_bytes: int = 1024) -> str:
        with self.queue.place(client, 10, answer_bytes):
            answer: str = await self.queue.together(client, 10, group, self.compute, item)
        return answer

    def start(self, client: str, items: str, **options: Any) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.ask(client, item, **options)) for item in items]


async def refused(bench: Bench, client: str, **options: Any) -> float:
    """Seconds after which ``client`` is told to come back."""
    with pytest.raises(RpcRefused) as caught:
        await bench.ask(client, **options)
    assert caught.value.code == "busy"
    return float(caught.value.detail["retry_after"])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_requests_of_the_same_states_are_computed_together_and_each_gets_its_answer() -> None:
    bench = Bench()
    tasks = bench.start("ann", "abc") + bench.start("bob", "xy") + bench.start("eve", "z", group="others")
    assert [await task for task in tasks] == [*"ABCXYZ"]
    assert bench.batches == [["a", "x", "b", "y", "c"], ["z"]]


async def test_so_many_are_computed_together_at_most() -> None:
    bench = Bench()
    tasks = [task for client in "abcd" for task in bench.start(client, "0123456")]
    await asyncio.gather(*tasks)
    assert [len(batch) for batch in bench.batches] == [TOGETHER, len(tasks) - TOGETHER]


async def test_a_client_has_so_many_places_and_a_few_greedy_ones_leave_some_to_others() -> None:
    bench = Bench()
    bench.gate.clear()
    tasks = [task for number in range(5) for task in bench.start(f"greedy {number}", "a" * MAX_WAITING_OF_CLIENT)]
    await settle()
    waiting = [task for task in tasks if not task.done()]
    assert len(waiting) < MAX_WAITING
    assert await refused(bench, "greedy 0") > 0
    modest = bench.start("modest", "x")
    await settle()
    bench.gate.set()
    assert await modest[0] == "X"
    assert all(len(batch) <= TOGETHER for batch in bench.batches)
    assert "x" in bench.batches[1]  # its turn came as soon as that of anybody
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {str, RpcRefused}
    assert bench.queue.refused == 1 + sum(isinstance(result, RpcRefused) for result in results)


async def test_busy_tells_how_long_the_queue_really_takes() -> None:
    bench = Bench(seconds=0.5, share=0.5)
    for _ in range(30):  # it learns how long answers take: 0.5 s, of half of the time
        task = bench.start("ann", "a")[0]
        await settle()
        await bench.clock.advance(2.0)
        await task
    bench.gate.clear()
    waiting = [bench.start(client, "a", group=client)[0] for client in ("bob", "eve", "joe")]
    await settle()
    expected = bench.queue.expected_wait
    assert expected == pytest.approx(3 * 0.5 / 0.5, rel=0.35)
    waiting += bench.start("zoe", "a" * 8, group="zoe")
    await settle()
    assert await refused(bench, "new") == pytest.approx(bench.queue.expected_wait)
    assert 10.0 < bench.queue.expected_wait < 15.0
    bench.gate.set()
    began = bench.clock.now()
    for _ in range(40):
        await bench.clock.advance(0.5)
        await settle()
    assert all(task.done() for task in waiting)
    assert await bench.ask("new") == "A"
    assert bench.clock.now() - began < 25.0


async def test_large_answers_are_few_at_a_time() -> None:
    bench = Bench()
    bench.gate.clear()
    tasks = [bench.start(f"client {n}", "a", answer_bytes=MAX_ANSWER_BYTES // 4)[0] for n in range(4)]
    await settle()
    await refused(bench, "next", answer_bytes=1)
    bench.gate.set()
    await asyncio.gather(*tasks)
    assert await bench.ask("next", answer_bytes=2 * MAX_ANSWER_BYTES) == "A"  # alone, anything may be asked


async def test_answers_take_no_more_than_their_share_of_the_time() -> None:
    bench = Bench(seconds=0.2, share=0.3)
    began, asked = bench.clock.now(), []
    while bench.clock.now() < began + 60.0:
        while sum(not task.done() for task in asked) < 8:
            asked += bench.start("ann", "a", group=str(len(asked)))
            await settle()
        await bench.clock.advance(0.1)
        await settle()
    elapsed = bench.clock.now() - began
    assert 0.25 * elapsed < bench.queue.busy_seconds <= 0.3 * elapsed + SAVED_SECONDS + bench.seconds
    bench.share = 1.0  # training has ended
    for _ in range(30):
        await bench.clock.advance(0.1)
        await settle()
    assert all(task.done() for task in asked)


async def test_what_counts_is_processor_time_and_every_request_costs_some_outside_the_worker() -> None:
    """On a machine where others take half, answers take twice as long and no more of it."""
    bench = Bench(seconds=0.2, share=0.3)
    bench.slower = 2.0
    began, asked = bench.clock.now(), []
    while bench.clock.now() < began + 60.0:
        while sum(not task.done() for task in asked) < 8:
            asked += bench.start("ann", "a", group=str(len(asked)))
            await settle()
        await bench.clock.advance(0.1)
        await settle()
    elapsed, done = bench.clock.now() - began, sum(task.done() for task in asked)
    assert bench.queue.cpu_seconds == pytest.approx(bench.queue.busy_seconds / 2)
    taken = bench.queue.cpu_seconds + done * REQUEST_SECONDS
    assert bench.queue.requests_per_second == pytest.approx(0.3 / (0.1 + REQUEST_SECONDS), rel=0.01)
    assert 0.25 * elapsed < taken <= 0.3 * elapsed + SAVED_SECONDS + bench.seconds
    for task in asked:
        task.cancel()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_of_what_answers_and_training_take_answers_get_their_share(share: float) -> None:
    for training in (0.2, 0.5, 1.0):
        rate = answering_rate(share, training)
        assert rate == pytest.approx(min(1.0, share * (rate + training))) or rate == 1.0
    assert answering_rate(share, 0.0) > 0  # whoever starves training, answers go on
    assert answering_rate(1.0, 0.3) == 1.0


async def test_a_caller_that_gives_up_frees_its_place_and_is_not_computed() -> None:
    bench = Bench()
    bench.gate.clear()
    first, *others = bench.start("ann", "abcd", group="one") + bench.start("bob", "x", group="two")
    await settle()
    for task in others[:3]:
        task.cancel()
    await settle()
    bench.gate.set()
    assert await first == "A" and await others[3] == "X"
    assert sum(bench.batches, []) in (["a", "b", "c", "d", "x"], ["a", "x"])  # noqa: RUF017 - a handful
    assert bench.queue._load.work == 0 and not bench.queue._load.requests


async def test_a_worker_that_fails_or_ends_fails_those_in_work_and_nobody_else() -> None:
    bench = Bench()

    def broken() -> None:
        raise ServingEnded("no worker")

    with pytest.raises(ServingEnded):
        await bench.queue.alone("ann", 1, broken)
    assert await bench.ask("ann") == "A"

    async def cancelled(job: Callable[[], Any]) -> Any:
        raise asyncio.CancelledError  # as an executor's future that was shut down

    bench.queue._worker = cancelled
    with pytest.raises(ServingEnded, match="has ended"):
        await bench.ask("ann")
    with pytest.raises(ServingEnded):
        await bench.ask("ann")
