"""What a peer answers strangers: predictions of the block it holds, from the states it has.

Everything asked for is named by digest, so that a holder that has moved on says so instead of answering from another
state. Computation runs in pieces on the worker the peer gives: one piece at a time and small, so that neither training
nor a round's snapshot waits long behind a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.errors import BlockswarmError
from blockswarm.model.config import VOCABULARY
from blockswarm.peer.batching import joined, noise, pieces, split_z, stack
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.readers import Readers
from blockswarm.peer.serving_queue import PIECE_WORK, ServingQueue, Worker
from blockswarm.peer.sessions import Asked, HolderSessions
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.messages import LogprobsRequest, StatesReply, StatesRequest, SweepRequest
from blockswarm.swarm.session_messages import SessionRequest

if TYPE_CHECKING:
    from blockswarm.model.readout import BlockReader

log = logging.getLogger(__name__)
Float32 = NDArray[np.float32]

HANDLER_SECONDS = 30.0

TIDY_SECONDS = 10.0
"""How often sessions that nobody uses, or whose states are gone, are looked for."""


class ServingDesk:
    """Answers ``states``, ``logprobs`` (also in sessions) and ``sweep`` for the block this peer holds.

    Parameters
    ----------
    manifest : Manifest
        The run.
    store : StateStore
        Certified states; asking for one keeps it for a while.
    worker : callable
        Runs computations; see :data:`~blockswarm.peer.serving_queue.Worker`.
    clock : Clock
        Measures how long answers take, and ends sessions.
    block : int or None
        The block that is served; ``None`` (and again while moving) refuses with ``not-serving``.
    device : str
        Torch device of the readers.
    share : callable
        Processor seconds a second that answers may take at this moment, above 0 and up to 1.

    Attributes
    ----------
    answered : int
        Requests computed so far.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: StateStore,
        worker: Worker,
        clock: Clock,
        *,
        block: int | None = None,
        device: str = "cpu",
        share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.block = block
        self.answered = 0
        self._manifest = manifest
        self._store = store
        self._clock = clock
        self._queue = ServingQueue(worker, clock, share)
        self._sessions = HolderSessions(manifest.model, clock.now)
        self._tidying: asyncio.Task[None] | None = None
        self._row_bytes = 4 * max(VOCABULARY, manifest.model.dim)  # of log-probabilities or z
        self._readers = Readers(manifest, device)
        self._genesis: dict[int, State] = {}
        self._computing_genesis = asyncio.Lock()

    def register(self, host: Registrar) -> None:
        """Take the serving calls of ``host``."""
        host.register("states", self._states)
        host.register("logprobs", self._logprobs, timeout=HANDLER_SECONDS)
        host.register("sweep", self._sweep, max_blob=self._sweep_blob, timeout=HANDLER_SECONDS)
        host.register("session.logprobs", self._session_logprobs, timeout=HANDLER_SECONDS)

    def close(self) -> None:
        """Look after sessions no more."""
        if self._tidying is not None:
            self._tidying.cancel()

    @property
    def requests_per_second(self) -> float:
        """What this peer can serve, from the time recent answers took."""
        return self._queue.requests_per_second

    def figures(self) -> dict[str, Any]:
        """Totals since the start, and what sessions take up at the moment."""
        return {
            "answers": self.answered,
            "refused": self._queue.refused,
            "seconds": round(self._queue.busy_seconds, 3),
            "cpu_seconds": round(self._queue.cpu_seconds, 3),
            "sessions": len(self._sessions.book),
            "session_bytes": self._sessions.book.bytes,
        }

    # -- handlers --------------------------------------------------------------------------------------------------

    async def _states(self, request: Request) -> Reply:
        for digest in checked(StatesRequest.parse, request.body).use:
            for subject in (self.block, EMBEDDING):
                if subject is not None:
                    self._store.get(subject, digest)  # this counts as use: it stays for a while
        return Reply(self._offer().to_body())

    async def _logprobs(self, request: Request) -> Reply:
        wanted = checked(LogprobsRequest.parse, request.body)
        self._check_windows(wanted.windows)

        def compute(reader: BlockReader, part: Sequence[int]) -> list[Float32]:
            rows = reader.log_probs(stack(wanted.windows, part))
            return [row[wanted.take[index] :] for index, row in zip(part, rows, strict=True)]

        return Reply({}, joined(await self._answer(request.peer_id, wanted, compute)))

    async def _sweep(self, request: Request) -> Reply:
        wanted = checked(SweepRequest.parse, request.body)
        self.check(wanted)
        last = wanted.block == self._manifest.model.blocks - 1
        return Reply({"last": last}, joined(await self.sweep(request.peer_id, wanted, request.blob)))

    def check(self, wanted: SweepRequest | SessionRequest) -> None:
        """Refuse what could not be computed here, before anything is waited for."""
        self._check_block(wanted.block)
        if isinstance(wanted, SweepRequest):
            self._check_windows(wanted.windows)
        else:
            self._session_windows(wanted)

    async def sweep(self, client: str, wanted: SweepRequest | SessionRequest, blob: bytearray) -> list[Float32]:
        """One Euler step.

        Parameters
        ----------
        client : str
            Peer id of who asks for it.
        wanted : SweepRequest or SessionRequest
            What passes :meth:`check`; in a session, with a seed.
        blob : bytearray
            z, float32 LE ``[positions, dim]``; empty for block 0, which draws its own.

        Returns
        -------
        list of ndarray
            For each window (in a session once, for the new bytes) the next z, float32 ``[len, dim]``; from the last
            block the rows wanted, float32 ``[n, 256]``.
        """
        dim = self._manifest.model.dim
        if isinstance(wanted, SessionRequest):
            parts = split_z(blob, wanted.block, [wanted.positions], dim)
            return [await self._continue(client, wanted, parts[0] if parts else None)]
        z = split_z(blob, wanted.block, list(map(len, wanted.windows)), dim)

        def compute(reader: BlockReader, part: Sequence[int]) -> list[Float32]:
            noisy = np.stack([z[index] if z else noise(wanted, index, dim) for index in part])
            rows, stepped = reader.sweep_step(stack(wanted.windows, part), noisy)
            if stepped is not None:
                return list(stepped)
            return [row[wanted.take[index] :] for index, row in zip(part, rows, strict=True)]

        return await self._answer(client, wanted, compute)

    async def _session_logprobs(self, request: Request) -> Reply:
        wanted = checked(SessionRequest.parse, request.body)
        return Reply({}, joined([await self._continue(request.peer_id, wanted, None)]))

    def _sweep_blob(self, peer_id: str, body: dict[str, Any], size: int) -> int:
        """Bytes of z that must come with a sweep; asked before any of them is read."""
        wanted = checked(SweepRequest.parse, body)
        self._check_block(wanted.block)
        return 0 if wanted.block == 0 else 4 * wanted.positions * self._manifest.model.dim

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_block(self, block: int) -> int:
        if self.block is None:
            raise RpcRefused("not-serving", "this peer does not serve yet")
        if block != self.block:
            raise RpcRefused("not-serving", f"this peer serves block {self.block}, not {block}")
        return self.block

    def _check_windows(self, windows: Sequence[bytes]) -> None:
        context = self._manifest.model.context
        longest = max(len(window) for window in windows)
        if longest > context:
            raise RpcRefused("bad-request", f"windows: {longest} bytes, the model's context is {context}")

    def _session_windows(self, wanted: SessionRequest) -> list[tuple[int, int, int]]:
        context = self._manifest.model.context
        windows = checked(wanted.windows, context)
        most = max(PIECE_WORK, context)
        if (positions := sum(stop - begin for begin, stop, _ in windows)) > most:
            raise RpcRefused("bad-request", f"new: windows of {positions} bytes, at most {most} in a session's request")
        return windows

    def _offer(self) -> StatesReply:
        if self.block is None:
            raise RpcRefused("not-serving", "this peer does not serve yet")
        return StatesReply(
            self.block,
            tuple(state.name for state in self._store.recent(self.block)),
            tuple(state.name for state in self._store.recent(EMBEDDING)),
        )

    async def _state(self, subject: int, digest: bytes) -> State:
        state = self._store.get(subject, digest)
        if state is not None:
            return state
        if digest == self._manifest.genesis_digest(subject):
            # The untrained model is what every measurement starts from; anyone can compute it at any time.
            async with self._computing_genesis:  # once, however many ask for it at the same time
                if subject not in self._genesis:
                    self._genesis[subject] = await asyncio.to_thread(State.genesis, self._manifest, subject)
            return self._genesis[subject]
        what = "embedding" if subject == EMBEDDING else f"state of block {subject}"
        raise RpcRefused("unknown-state", f"this peer does not have that {what}", self._offer().to_body())

    # -- work ------------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        client: str,
        wanted: LogprobsRequest | SweepRequest,
        compute: Callable[[BlockReader, Sequence[int]], list[Float32]],
    ) -> list[Float32]:
        """One array per window, in order, computed piece by piece when it is this client's turn."""
        self._check_block(wanted.block)
        answers: list[Float32] = [np.empty(0, np.float32)] * len(wanted.windows)
        try:
            with self._queue.place(client, wanted.positions, self._row_bytes * wanted.positions):
                states = await self._both(wanted)
                for part in pieces(wanted.windows):

                    def piece(part: Sequence[int] = part) -> list[Float32]:
                        return compute(self._readers.of(*states), part)

                    size = sum(len(wanted.windows[index]) for index in part)
                    for index, answer in zip(part, await self._queue.alone(client, size, piece), strict=True):
                        answers[index] = answer
        except BlockswarmError as error:
            raise _refusal(error) from None
        self.answered += 1
        return answers

    async def _continue(self, client: str, wanted: SessionRequest, z: Float32 | None) -> Float32:
        """The answer to a request of a session, computed together with those of others."""
        self._check_block(wanted.block)
        asked = Asked(client, wanted, self._session_windows(wanted), z)
        try:
            # What must be computed again is the client's to pay for, however little of its request is new.
            due = self._sessions.due(asked)
            with self._queue.place(client, due, self._row_bytes * wanted.positions):
                states = await self._both(wanted)

                def compute(items: Sequence[Asked]) -> list[Float32 | RpcRefused]:
                    return self._sessions.answer(self._readers.of(*states), items)

                group = (*asked.states, wanted.seed is None)
                answer = await self._queue.together(client, due, group, compute, asked)
        except BlockswarmError as error:
            raise _refusal(error) from None
        self._look_after_sessions()
        if isinstance(answer, RpcRefused):
            raise answer
        self.answered += 1
        result: Float32 = answer
        return result

    async def _both(self, wanted: LogprobsRequest | SweepRequest | SessionRequest) -> tuple[State, State]:
        block_state = await self._state(wanted.block, wanted.digest)
        return block_state, await self._state(EMBEDDING, wanted.embedding_digest)

    def _look_after_sessions(self) -> None:
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        """Free what sessions take up that have ended, or whose states have gone, until there is none."""
        sessions, here = self._sessions, self._manifest.genesis_digest
        while len(sessions.book):
            await self._clock.sleep_until(self._clock.now() + TIDY_SECONDS)
            subjects = [EMBEDDING] if self.block is None else [EMBEDDING, self.block]
            alive = {state.digest for subject in subjects for state in self._store.recent(subject)}
            alive |= {here(subject) for subject in subjects}
            try:
                await self._queue.alone("", 0, partial(sessions.keep_only, alive))
            except BlockswarmError as error:
                log.debug("sessions are not looked after any more: %s", error)
                return


def _refusal(error: BlockswarmError) -> RpcRefused:
    """A refusal as it is; else the worker has ended, or moved to another block, under the request."""
    if isinstance(error, RpcRefused):
        return error
    log.debug("a request could not be computed: %s", error)
    return RpcRefused("not-serving", "this peer stops serving")
