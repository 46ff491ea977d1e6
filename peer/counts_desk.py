"""What a holder of the n-gram counts answers: which file it has, and rows of log-probabilities from it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.model.layout import COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.peer.batching import joined
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.serving import HANDLER_SECONDS
from blockswarm.peer.states import State
from blockswarm.swarm.counts.files import rows_of
from blockswarm.swarm.counts_messages import METHOD, CountsRequest
from blockswarm.swarm.messages import StateName, StatesReply, StatesRequest

MAX_WAITING = 16
"""Requests accepted at a time, the one in work included: 16 answers of at most 4 MiB."""


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
        Measures how long answers take, for ``retry_after``.
    """

    def __init__(self, model: NgramModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._waiting = 0
        self._usual_seconds = 0.01
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counts")
        self.answered = 0
        """Requests computed so far."""

    def register(self, host: Registrar) -> None:
        """Take the serving calls of ``host``."""
        host.register("states", self._states)
        host.register(METHOD, self._rows, timeout=HANDLER_SECONDS)

    @property
    def requests_per_second(self) -> float:
        """What this peer can serve, from the time recent answers took."""
        return 1.0 / max(1e-3, self._usual_seconds)

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
        if self._waiting >= MAX_WAITING:
            retry = min(10.0, self._waiting * self._usual_seconds)
            raise RpcRefused("busy", f"{self._waiting} requests are waiting already", {"retry_after": retry})
        self._waiting += 1
        try:
            began = self._clock.now()
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, rows_of, self._model, wanted)
            self._usual_seconds += 0.2 * (self._clock.now() - began - self._usual_seconds)
        except RuntimeError:  # the thread was ended under the request
            raise RpcRefused("not-serving", "this peer stops serving") from None
        finally:
            self._waiting -= 1
        self.answered += 1
        return Reply({}, joined([rows]))

    def _offer(self) -> dict[str, object]:
        return StatesReply(COUNTS, (StateName(0, self._model.digest),), ()).to_body()
