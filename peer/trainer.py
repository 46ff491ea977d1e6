"""The training thread: it owns the learner, makes step after step, and between two steps does what the peer asks.

Everything that touches live weights (snapshots, corrections after a commit, evaluation) runs on this one thread, so
none of it needs a lock. Training does not wait for a round to be averaged: the snapshot enters the average, steps made
meanwhile stay in the live weights and enter the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from blockswarm.errors import BlockswarmError

log = logging.getLogger(__name__)
T = TypeVar("T")
Float32 = npt.NDArray[np.float32]

NICE = 5
"""The training thread yields to the event loop and the daemon, whose answers other peers wait for."""

PACE_SECONDS = 1.0
"""How often it is looked at how much of a processor the thread gets."""

STOP_SECONDS = 3.0
"""How long a stop waits for the step in progress."""


class TrainerStopped(BlockswarmError):
    """The training thread has ended; nothing more can be asked of it."""


class Steps(Protocol):
    """What the thread itself asks of a learner."""

    @property
    def samples_per_step(self) -> int:
        """Samples in one step."""
        ...

    def step(self) -> Any:
        """Make one; its loss, as something that adds up and that ``float`` takes."""
        ...


class Learner(Steps, Protocol):
    """What rounds ask of a learner; `blockswarm.model.learner.BlockLearner` describes each of these."""

    def read(self) -> tuple[Float32, Float32]:
        """Copies of θ and of the embedding."""
        ...

    def add(self, theta_correction: Float32 | None, embedding_correction: Float32 | None) -> None:
        """Add to them."""
        ...

    def load(self, theta: Float32 | None, embedding: Float32 | None) -> None:
        """Replace them."""
        ...

    def set_certified(self, samples: int) -> None:
        """Samples behind the certified state."""
        ...

    def reset_optimizer(self, warmup_steps: int) -> None:
        """Forget what the optimizer has averaged."""
        ...

    def evaluate(self, windows: npt.NDArray[np.uint8]) -> float:
        """Held-out cross-entropy, nats per byte."""
        ...


L = TypeVar("L", bound=Steps)


class Trainer(Generic[L]):
    """One thread around one learner.

    Parameters
    ----------
    make_learner : callable
        Builds the learner; called once, on the thread, because that is where its tensors live.
    local_steps : int or None
        Steps between two snapshots; ``None`` trains without a limit (elastic).
    """

    def __init__(
        self,
        make_learner: Callable[[], L],
        *,
        local_steps: int | None = None,
    ) -> None:
        self._make_learner = make_learner
        self._local_steps = local_steps
        self._jobs: queue.SimpleQueue[tuple[Callable[[L], Any], asyncio.Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._enabled = False
        self._steps_left = local_steps
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Ends with the exception that ended the thread, if one did."""
        self.first_step = asyncio.Event()
        """Set once a step has been made."""
        self.steps = 0
        self.samples = 0
        """Samples trained since the start."""
        self.step_seconds = 0.0
        """Moving average of a step's wall time."""
        self.busy_seconds = 0.0
        """Wall time spent in steps."""
        self._pace, self._pace_at = 1.0, time.monotonic()
        self._pace_used: float | None = None
        self._processor_clock: int | None = None  # taken by the thread itself: its handle may be used while it lives
        self._loss_sum: Any = 0.0
        self._loss_steps = 0

    def start(self) -> None:
        """Start the thread; training itself begins with `train`."""
        self._thread.start()

    def train(self, enabled: bool) -> None:
        """Let the thread make steps, or pause it; a step in progress ends first."""
        self._enabled = enabled
        self._jobs.put(None)  # wakes a thread that waits for work

    def pace(self) -> float:
        """Processor seconds a second that the thread got lately; 1 where the system does not tell, or before it did."""
        now = time.monotonic()
        if now - self._pace_at >= PACE_SECONDS and (used := self._processor_seconds()) is not None:
            if self._pace_used is not None:
                self._pace += 0.5 * ((used - self._pace_used) / (now - self._pace_at) - self._pace)
            self._pace_at, self._pace_used = now, used
        return self._pace

    def _processor_seconds(self) -> float | None:
        try:
            return None if self._processor_clock is None else time.clock_gettime(self._processor_clock)
        except OSError:  # the thread has ended
            return None

    @property
    def training(self) -> bool:
        """Whether the thread is making steps."""
        return self._enabled and self._steps_left != 0

    async def run(self, job: Callable[[L], T]) -> T:
        """Run ``job(learner)`` on the thread, between two steps, and return its result.

        Raises
        ------
        TrainerStopped
            When the thread has ended.
        Exception
            Whatever the job raised.
        """
        if self._stopping.is_set() or not self._thread.is_alive():
            raise TrainerStopped("the training thread has ended")
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((job, done))
        return await done

    def take_loss(self) -> float | None:
        """Mean training loss (nats per byte, weighted) since the last call; ``None`` without steps. Thread only."""
        total, steps = self._loss_sum, self._loss_steps
        self._loss_sum, self._loss_steps = 0.0, 0
        return float(total) / steps if steps else None

    def renew_steps(self) -> None:
        """Give the next ``local_steps``, after a snapshot. Thread only."""
        self._steps_left = self._local_steps

    async def stop(self) -> None:
        """End the thread; the step in progress is waited for, within bounds."""
        self._stopping.set()
        self._jobs.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # On Linux a thread has a nice value of its own; what it starts (OpenMP workers) inherits it.
            own = threading.get_native_id()
            # Relative: of a peer that root runs with a nice value of its own, this thread would outrank the others.
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICE)
        except OSError:
            log.debug("the training thread keeps its priority", exc_info=True)
        with contextlib.suppress(AttributeError, OSError):  # systems without such clocks
            self._processor_clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self._train()
        except BaseException as error:
            self._tell(self.failed, None, error)
        finally:
            self._stopping.set()
            self._drop_jobs()

    def _train(self) -> None:
        learner = self._make_learner()
        self._steps_left = self._local_steps
        while not self._stopping.is_set():
            idle = not self._enabled or self._steps_left == 0
            try:
                entry = self._jobs.get(block=idle, timeout=1.0 if idle else None)
            except queue.Empty:
                if not idle:
                    self._step(learner)
                continue
            if entry is not None:
                self._do(learner, *entry)

    def _step(self, learner: L) -> None:
        begin = time.perf_counter()
        self._loss_sum = self._loss_sum + learner.step()
        self._loss_steps += 1
        seconds = time.perf_counter() - begin
        self.step_seconds = seconds if self.steps == 0 else 0.9 * self.step_seconds + 0.1 * seconds
        self.busy_seconds += seconds
        self.steps += 1
        self.samples += learner.samples_per_step
        if self._steps_left is not None:
            self._steps_left -= 1
        if self.steps == 1:
            self._loop.call_soon_threadsafe(self.first_step.set)

    def _do(self, learner: L, job: Callable[[L], Any], done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            return
        try:
            result = job(learner)
        except Exception as error:
            self._tell(done, None, error)
        else:
            self._tell(done, result, None)

    def _tell(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("a result came after the end")

    def _drop_jobs(self) -> None:
        while True:
            try:
                entry = self._jobs.get_nowait()
            except queue.Empty:
                return
            if entry is not None:
                self._tell(entry[1], None, TrainerStopped("the training thread has ended"))
