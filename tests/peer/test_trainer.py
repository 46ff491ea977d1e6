"""The training thread: steps, jobs between steps, and an end that is always bounded."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from blockswarm.peer.trainer import NICE, Trainer, TrainerStopped


class CountingLearner:
    """A learner whose steps are instant and counted; the thread around it is what is tested."""

    samples_per_step = 4

    def __init__(self) -> None:
        self.steps = 0
        self.thread = threading.current_thread()

    def step(self) -> float:
        self.steps += 1
        return 2.0


async def started(**options) -> Trainer:
    trainer = Trainer(CountingLearner, **options)
    trainer.start()
    trainer.train(True)
    return trainer


async def until_first_step(trainer: Trainer) -> None:
    async with asyncio.timeout(5):
        await trainer.first_step.wait()


async def until_steps(trainer: Trainer, count: int) -> None:
    async with asyncio.timeout(5):
        while await trainer.run(lambda learner: learner.steps) < count:
            pass


async def test_it_trains_without_a_limit_and_answers_between_steps():
    trainer = await started()
    await until_first_step(trainer)
    steps, thread, own = await trainer.run(lambda learner: (learner.steps, threading.current_thread(), learner.thread))
    assert steps >= 1 and thread is own and thread is not threading.main_thread()
    assert trainer.samples == 4 * trainer.steps
    await trainer.stop()


async def test_it_yields_to_the_other_threads_of_its_process_however_nice_that_is():
    def niceness(*_: object) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    trainer = await started()
    await until_first_step(trainer)
    assert await trainer.run(niceness) == min(19, niceness() + NICE)
    await trainer.stop()


async def test_it_tells_how_much_of_a_processor_it_gets(monkeypatch):
    monkeypatch.setattr("blockswarm.peer.trainer.PACE_SECONDS", 0.02)
    trainer = await started(local_steps=1)
    assert trainer.pace() == 1.0
    await until_first_step(trainer)
    for _ in range(12):
        await asyncio.sleep(0.03)
        trainer.pace()
    assert trainer.pace() < 0.3  # it waits for more to do
    await trainer.stop()
    assert 0.0 <= trainer.pace() < 0.3


async def test_a_fixed_number_of_local_steps_is_made_and_no_more_until_they_are_renewed():
    trainer = await started(local_steps=3)
    await until_steps(trainer, 3)
    for _ in range(20):
        assert await trainer.run(lambda learner: learner.steps) == 3
    await trainer.run(lambda _: trainer.renew_steps())
    await until_steps(trainer, 6)
    await trainer.stop()


async def test_the_mean_loss_covers_the_steps_since_it_was_last_taken():
    trainer = await started()
    await until_first_step(trainer)
    assert await trainer.run(lambda _: trainer.take_loss()) == 2.0
    trainer.train(False)
    await trainer.run(lambda _: trainer.take_loss())
    assert await trainer.run(lambda _: trainer.take_loss()) is None
    await trainer.stop()


async def test_a_job_that_fails_tells_its_caller_and_training_goes_on():
    trainer = await started()
    with pytest.raises(ZeroDivisionError):
        await trainer.run(lambda _: 1 / 0)
    assert await trainer.run(lambda _: "still here") == "still here"
    await trainer.stop()


async def test_a_learner_that_cannot_be_made_is_reported_and_jobs_do_not_hang():
    def broken() -> CountingLearner:
        raise MemoryError("no room")

    trainer = Trainer(broken)
    trainer.start()
    with pytest.raises(MemoryError):
        async with asyncio.timeout(5):
            await trainer.failed
    with pytest.raises(TrainerStopped):
        await trainer.run(lambda learner: learner.steps)


async def test_jobs_waiting_at_the_end_are_told_so():
    trainer = await started()
    begun, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(_: object) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return release.wait(5)

    first = asyncio.create_task(trainer.run(hold))
    await begun.wait()
    second = asyncio.create_task(trainer.run(lambda learner: learner.steps))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(trainer.stop())
    await asyncio.sleep(0)
    release.set()
    await stopping
    assert await first is True
    with pytest.raises(TrainerStopped):
        await second
