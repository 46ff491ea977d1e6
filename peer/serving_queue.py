"""Requests waiting for the serving worker: clients in turn, those of the same states together, within a share of time.

A place in the queue is bounded in every way: how many wait, how many of one client, and for how long. Who is refused is
told how long the queue takes, and a caller that gives up frees its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.errors import BlockswarmError
from blockswarm.swarm.policy.turns import TimeShare, Turn, Turns

log = logging.getLogger(__name__)
T = TypeVar("T")

Worker = Callable[[Callable[[], Any]], Awaitable[Any]]
"""``await worker(fn)`` runs ``fn()`` off the event loop and returns its result."""

MAX_WAITING = 64
"""Serving requests accepted at a time, those in work included."""

MAX_WAITING_OF_CLIENT = 16
"""Of one client: as many calls as a client makes to one holder at a time."""

MAX_ANSWER_BYTES = 48 << 20
"""Of all answers being computed: 12 of the largest."""

MAX_WAIT_SECONDS = 10.0
"""Who would have to wait longer is refused: another holder, or the same one later, is better."""

TOGETHER = 16
"""Requests of sessions computed in one go, at most."""

PIECE_WORK = 1024
"""Positions computed in one go, at most: neither a round nor another client waits long behind them."""

REQUEST_WORK = 16
"""What a request costs besides its positions, in positions."""

REQUEST_SECONDS = 0.8e-3
"""Processor time that a request takes besides the worker's: in p2pd, and in the loop that reads and answers it."""

SAVED_SECONDS = 1.0
"""Unused serving time that is saved up: a burst that short is answered at full speed."""


class ServingEnded(BlockswarmError):
    """Nothing more is computed."""


@dataclass(frozen=True, eq=False)
class _Job:
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """Of a batch; on the worker."""
    item: Any
    done: asyncio.Future[Any]


@dataclass
class _Load:
    """What has been accepted."""

    requests: Counter[str] = field(default_factory=Counter)
    work: int = 0
    answer_bytes: int = 0


class ServingQueue:
    """Everything that is computed for clients.

    Parameters
    ----------
    worker : callable
        Runs computations, one at a time; see :data:`Worker`.
    clock : Clock
        Measures how long they take.
    share : callable
        Processor seconds a second, above 0 and up to 1, that answers may take at this moment.
    processor : callable
        Processor seconds of the calling thread so far; called on the worker.

    Attributes
    ----------
    busy_seconds : float
        Time spent on answers so far.
    cpu_seconds : float
        Processor time of the worker's thread in it.
    refused : int
        Requests turned away because too much was waiting.
    """

    def __init__(
        self,
        worker: Worker,
        clock: Clock,
        share: Callable[[], float],
        *,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self.busy_seconds = 0.0
        self.cpu_seconds = 0.0
        self.refused = 0
        self._worker = worker
        self._clock = clock
        self._share = share
        self._processor = processor
        self._turns: Turns[_Job] = Turns()
        self._time = TimeShare(SAVED_SECONDS, clock.now())
        self._load = _Load()
        self._pace = self._processor_pace = 1e-4  # seconds a position, and processor seconds
        self._usual_seconds = self._usual_processor = 0.01  # of a request
        self._pump: asyncio.Task[None] | None = None

    @property
    def requests_per_second(self) -> float:
        """Requests that can be answered, from the time and the processor time that recent ones took."""
        return 1.0 / max(1e-4, self._usual_seconds, self._usual_processor / self._share())

    @property
    def expected_wait(self) -> float:
        """Seconds until everything that has been accepted is computed."""
        share, work = self._share(), self._load.work
        allowed = self._time.wait(share, self._clock.now()) + work * self._processor_pace / share
        return max(allowed, work * self._pace)  # on a busy machine work takes longer than its processor time

    @contextlib.contextmanager
    def place(self, client: str, positions: int, answer_bytes: int) -> Iterator[None]:
        """A place for one request, as long as the context lasts.

        Raises
        ------
        RpcRefused
            ``busy``, with ``retry_after`` in seconds, when there is none.
        """
        load, work = self._load, positions + REQUEST_WORK
        wait = self.expected_wait
        waiting, own = load.requests.total(), load.requests[client]
        # Of one client as many as there are places left: a few greedy ones, each with many, leave some to others.
        if own >= min(MAX_WAITING_OF_CLIENT, MAX_WAITING - waiting):
            self._refuse(f"{waiting} requests are waiting already, {own} of them yours", wait)
        if waiting and (load.answer_bytes + answer_bytes > MAX_ANSWER_BYTES or wait > MAX_WAIT_SECONDS):
            self._refuse(f"{waiting} requests are waiting already, with {wait:.1f} s of work", wait)
        load.requests[client] += 1
        load.work += work
        load.answer_bytes += answer_bytes
        try:
            yield
        finally:
            load.requests[client] -= 1
            if not load.requests[client]:
                del load.requests[client]
            load.work -= work
            load.answer_bytes -= answer_bytes

    async def alone(self, client: str, positions: int, run: Callable[[], T]) -> T:
        """The result of ``run()``, computed by itself when it is this client's turn."""
        answer: T = await self._wait(client, positions, None, lambda items: [run()], None)
        return answer

    async def together(
        self, client: str, positions: int, group: Hashable, run: Callable[[Sequence[T]], Sequence[Any]], item: T
    ) -> Any:
        """The result for ``item``, computed with others of the group: ``run(items)`` gives one result for each."""
        return await self._wait(client, positions, group, run, item)

    def _refuse(self, why: str, wait: float) -> None:
        self.refused += 1
        raise RpcRefused("busy", why, {"retry_after": max(0.05, wait)})

    async def _wait(
        self, client: str, positions: int, group: Hashable | None, run: Callable[[Sequence[Any]], Any], item: Any
    ) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        turn = Turn(client, positions + REQUEST_WORK, group, _Job(run, item, done))
        self._turns.add(turn)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._work())
        try:
            return await done
        finally:
            self._turns.discard(turn)  # the caller may have given up

    async def _work(self) -> None:
        """Compute what is waiting until nothing is."""
        while self._turns:
            wait = self._time.wait(self._share(), self._clock.now())
            if wait > 0:
                await self._clock.sleep_until(self._clock.now() + min(wait, 0.5))
                continue  # meanwhile the share may have changed, and some may have given up
            taken = self._turns.take(most=TOGETHER, most_work=PIECE_WORK)
            await self._compute([turn.item for turn in taken], sum(turn.work for turn in taken))

    async def _compute(self, jobs: Sequence[_Job], work: int) -> None:
        clock = self._clock

        def timed() -> tuple[Sequence[Any], float, float]:
            began, used = clock.now(), self._processor()  # on the worker: what the event loop does is not its
            results = jobs[0].run([job.item for job in jobs])
            return results, clock.now() - began, self._processor() - used

        try:
            results, seconds, used = await self._worker(timed)
        except (Exception, asyncio.CancelledError) as error:
            ended = isinstance(error, asyncio.CancelledError)  # the worker, or all of this process
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(ServingEnded("the serving worker has ended") if ended else error)
            if ended and (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return
        self.busy_seconds += seconds
        self.cpu_seconds += used
        used += REQUEST_SECONDS * len(jobs)
        self._time.spend(used, self._share(), clock.now())
        self._pace += 0.2 * (seconds / work - self._pace)
        self._processor_pace += 0.2 * (used / work - self._processor_pace)
        self._usual_seconds += 0.2 * (seconds / len(jobs) - self._usual_seconds)
        self._usual_processor += 0.2 * (used / len(jobs) - self._usual_processor)
        for job, result in zip(jobs, results, strict=True):
            if not job.done.done():
                job.done.set_result(result)
