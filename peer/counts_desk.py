"""What a holder of the n-gram counts answers: which file it has, and rows of log-probabilities from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.model.layout import COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.peer.batching import joined
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.serving import HANDLER_SECONDS
from blockswarm.peer.serving_queue import ServingEnded, ServingQueue
from blockswarm.peer.states import State
from blockswarm.swarm.answers import ROW_BYTES
from blockswarm.swarm.counts.files import rows_of
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.messages import StateName, StatesReply, StatesRequest


def counts_state(model: NgramModel) -> State:
    """The file as a state, so that others fetch it as they fetch a block: its bytes, taken for float32 values.

    It is the state of round 0, which needs no certificate: the manifest has its digest.
    """
    values = np.frombuffer(model.data, dtype="<f4").astype(np.float32, copy=False)
    return State(COUNTS, 0, values, model.digest, 0, b"", model.chunk_digests)


class CountsDesk:
    """Answers ``states`` and ``counts``.

    Parameters
    ----------
    model : NgramModel
        The counts.
    clock : Clock
        Measures how long answers take.
    """

    def __init__(self, model: NgramModel, clock: Clock) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counts")
        self._queue = ServingQueue(self._compute, clock, share=lambda: 1.0)  # it trains nothing
        self.answered = 0
        """Requests computed so far."""

    def register(self, host: Registrar) -> None:
        """Take the serving calls of ``host``."""
        host.register("states", self._states)
        host.register(METHOD, self._rows, timeout=HANDLER_SECONDS)

    @property
    def requests_per_second(self) -> float:
        """What this peer can serve, from the time recent answers took."""
        return self._queue.requests_per_second

    def stop(self) -> None:
        """Answer nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _states(self, request: Request) -> Reply:
        checked(StatesRequest.parse, request.body)
        return Reply(self._offer())

    async def _rows(self, request: Request) -> Reply:
        wanted = checked(CountsRequest.parse, request.body)
        if wanted.digest != self._model.digest:
            raise RpcRefused("unknown-state", "this peer has other counts", self._offer())
        client, work = request.peer_id, wanted.positions
        try:
            with self._queue.place(client, work, wanted.rows * ROW_BYTES):
                rows = await self._queue.alone(client, work, partial(rows_of, self._model, wanted))
        except (ServingEnded, RuntimeError):  # the thread was ended under the request
            raise RpcRefused("not-serving", "this peer stops serving") from None
        self.answered += 1
        return Reply({}, joined([rows]))

    async def _compute(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _offer(self) -> dict[str, object]:
        return StatesReply(COUNTS, (StateName(0, self._model.digest),), ()).to_body()
