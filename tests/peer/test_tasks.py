"""Background tasks have an owner, fail aloud, and end with it."""

import asyncio

from blockswarm.peer import tasks
from blockswarm.peer.tasks import Supervisor


async def test_a_task_that_fails_is_reported_counted_and_started_again(monkeypatch):
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.001)
    reports: list[str] = []
    supervisor = Supervisor(lambda name, error: reports.append(f"{name}: {error}"))
    runs, third = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise OSError("gone")
        third.set()
        await asyncio.Event().wait()

    supervisor.forever("watching", work)
    async with asyncio.timeout(5):
        await third.wait()
    assert reports == ["watching: gone"] * 2
    assert supervisor.failures == {"watching": 2}
    await supervisor.stop()


async def test_stop_ends_everything_it_owns():
    supervisor = Supervisor(lambda name, error: None)
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    supervisor.once("once", wait_for_ever())
    supervisor.forever("for ever", wait_for_ever)
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended == ["ended", "ended"]


async def test_a_single_task_that_fails_is_reported_once():
    reports: list[str] = []
    supervisor = Supervisor(lambda name, error: reports.append(f"{name}: {error}"))

    async def fail() -> None:
        raise ValueError("no")

    await supervisor.once("single", fail())
    assert reports == ["single: no"]
