"""Work side by side: a race of several peers for one answer, and workers that share many pieces of work."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


@dataclass(frozen=True)
class Won(Generic[T]):
    """The first good answer."""

    peer: str
    result: T


@dataclass
class Race(Generic[T]):
    """How a race went."""

    won: Won[T] | None = None
    """Who answered first, and what; None when everybody failed."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Who failed before, and how."""
    overtaken: dict[str, float] = field(default_factory=dict)
    """Who was still being waited for when the winner answered, with the seconds given to each."""


async def race(
    candidates: Iterable[str],
    attempt: Callable[[str], Awaitable[T]],
    patience: Callable[[str], float],
) -> Race[T]:
    """Run ``attempt`` for the candidates in order until one succeeds.

    Parameters
    ----------
    candidates : iterable of str
        Whom to try, best first. Each is tried once.
    attempt : callable
        Asks one candidate; an exception means it failed. It bounds its own waits.
    patience : callable
        Seconds after which the next candidate is started beside a silent one. A failure starts the next at once.

    Returns
    -------
    Race
        With the first good result; what was still running is cancelled.
    """
    waiting = deque(candidates)
    running: dict[str, float] = {}
    outcome: Race[T] = Race()
    send, receive = trio.open_memory_channel[tuple[str, Won[T] | Exception]](math.inf)

    async def run(name: str) -> None:
        try:
            send.send_nowait((name, Won(name, await attempt(name))))
        except Exception as error:
            send.send_nowait((name, error))

    async with trio.open_nursery() as nursery:
        newest = ""
        while waiting or running:
            if waiting and (not running or newest not in running or _since(running[newest]) >= patience(newest)):
                newest = waiting.popleft()
                running[newest] = trio.current_time()
                nursery.start_soon(run, newest)
            left = patience(newest) - _since(running[newest]) if waiting else math.inf
            with trio.move_on_after(max(0.0, left)) as scope:
                name, came = await receive.receive()
            if scope.cancelled_caught:
                continue  # silent for too long: the next one starts beside it
            del running[name]
            if isinstance(came, Exception):
                outcome.failed[name] = came
                continue
            outcome.won = came
            outcome.overtaken = {other: _since(begun) for other, begun in running.items()}
            break
        nursery.cancel_scope.cancel()
    return outcome


async def drain(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, workers: int) -> None:
    """Do ``work`` for every one of ``items``, in their order, ``workers`` at a time.

    Parameters
    ----------
    items : iterable
        Taken one by one, when a worker is free.
    work : callable
        Deals with one item. The first exception that it raises cancels what is under way, and is raised here as it is.
    workers : int
        Items dealt with at a time.
    """
    left = iter(items)
    failed: list[Exception] = []

    async def worker() -> None:
        try:
            for item in left:  # the workers share one iterator
                await work(item)
        except Exception as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(worker)
    if failed:
        raise failed[0]


def _since(moment: float) -> float:
    return float(trio.current_time() - moment)
