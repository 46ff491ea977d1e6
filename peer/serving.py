"""What a peer answers strangers: the manifest, its certified states, and predictions of its block.

Everything asked for is named by digest, so that a holder that has moved on says so instead of answering from another
state. Computation runs in pieces on the worker the peer gives (its training thread, between steps): one piece at a time
and small, so that neither training nor a round's snapshot waits long behind a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import BlobLimit, Handler, Reply, Request
from blockswarm.errors import BlockswarmError
from blockswarm.peer.batching import joined, noise, pieces, split_z, stack
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.memory import KEPT_READERS
from blockswarm.swarm.messages import (
    ChunkRequest,
    HeadRequest,
    LogprobsRequest,
    ManifestRequest,
    StatesReply,
    StatesRequest,
    SweepRequest,
)

if TYPE_CHECKING:
    from blockswarm.model.readout import BlockReader

log = logging.getLogger(__name__)
T = TypeVar("T")
Float32 = NDArray[np.float32]

MAX_WAITING = 12
"""Serving requests accepted at a time, the one in work included: 12 answers of at most 4 MiB."""

HANDLER_SECONDS = 30.0


class Registrar(Protocol):
    """The part of a host that serving needs: ``blockswarm.dht.host.Host.register``."""

    def register(
        self, method: str, handler: Handler, *, max_blob: BlobLimit = ..., run_bound: bool = ..., timeout: float = ...
    ) -> None:
        """Answer calls of ``method``."""
        ...


Worker = Callable[[Callable[[], Any]], Awaitable[Any]]
"""``await worker(fn)`` runs ``fn()`` off the event loop and returns its result."""


def serve_manifest(host: Registrar, manifest: Manifest) -> None:
    """Answer ``manifest``: newcomers ask before they belong to the run."""

    async def answer(request: Request) -> Reply:
        wanted = _parse(ManifestRequest, request.body)
        if wanted.run_id != manifest.run_id:
            raise RpcRefused("unknown-run", f"this peer is in {manifest.run_id}")
        return Reply({}, manifest.canonical())

    host.register("manifest", answer, run_bound=False)


def serve_states(host: Registrar, store: StateStore) -> None:
    """Answer ``state.head`` and ``state.chunk`` from the states in ``store``."""

    def find(subject: int, digest: bytes | None) -> State:
        state = store.head(subject) if digest is None else store.get(subject, digest)
        if state is None:
            raise RpcRefused("unknown-state", f"this peer does not have that state of subject {subject}")
        return state

    async def head(request: Request) -> Reply:
        wanted = _parse(HeadRequest, request.body)
        return Reply(find(wanted.subject, wanted.digest).head.to_body())

    async def chunk(request: Request) -> Reply:
        wanted = _parse(ChunkRequest, request.body)
        state = find(wanted.subject, wanted.digest)
        count = len(state.chunks) + len(state.momentum_chunks)
        if wanted.index >= count:
            raise RpcRefused("bad-request", f"index: the state has {count} chunks")
        return Reply({}, state.chunk(wanted.index))

    host.register("state.head", head)
    host.register("state.chunk", chunk)


class ServingDesk:
    """Answers ``states``, ``logprobs`` and ``sweep`` for the block this peer holds.

    Parameters
    ----------
    manifest : Manifest
        The run.
    store : StateStore
        Certified states; asking for one keeps it for a while.
    worker : callable
        Runs computations; see :data:`Worker`.
    clock : Clock
        Measures how long answers take, for ``retry_after``.
    block : int or None
        The block that is served; ``None`` (and again while moving) refuses with ``not-serving``.
    device : str
        Torch device of the readers.

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
    ) -> None:
        self.block = block
        self.answered = 0
        self._manifest = manifest
        self._store = store
        self._worker = worker
        self._clock = clock
        self._device = device
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._usual_seconds = 0.1
        self._readers: OrderedDict[tuple[int, bytes, bytes], BlockReader] = OrderedDict()
        self._genesis: dict[int, State] = {}

    def register(self, host: Registrar) -> None:
        """Take the serving calls of ``host``."""
        host.register("states", self._states)
        host.register("logprobs", self._logprobs, timeout=HANDLER_SECONDS)
        host.register("sweep", self._sweep, max_blob=self._sweep_blob, timeout=HANDLER_SECONDS)

    @property
    def requests_per_second(self) -> float:
        """What this peer can serve, from the time recent answers took."""
        return 1.0 / max(1e-3, self._usual_seconds)

    # -- handlers --------------------------------------------------------------------------------------------------

    async def _states(self, request: Request) -> Reply:
        for digest in _parse(StatesRequest, request.body).use:
            for subject in (self.block, EMBEDDING):
                if subject is not None:
                    self._store.get(subject, digest)  # this counts as use: it stays for a while
        return Reply(self._offer().to_body())

    async def _logprobs(self, request: Request) -> Reply:
        wanted = _parse(LogprobsRequest, request.body)
        self._check_windows(wanted.windows)

        def compute(reader: BlockReader, part: Sequence[int]) -> list[Float32]:
            rows = reader.log_probs(stack(wanted.windows, part))
            return [row[wanted.take[index] :] for index, row in zip(part, rows, strict=True)]

        answers = await self._answer(wanted, compute)
        return Reply({}, joined(answers))

    async def _sweep(self, request: Request) -> Reply:
        wanted = _parse(SweepRequest, request.body)
        self.check(wanted)
        last = wanted.block == self._manifest.model.blocks - 1
        answers = await self.sweep(wanted, split_z(request.blob, wanted, self._manifest.model.dim))
        return Reply({"last": last}, joined(answers))

    def check(self, wanted: SweepRequest) -> None:
        """Refuse what could not be computed here, before anything is waited for."""
        self._check_block(wanted.block)
        self._check_windows(wanted.windows)

    async def sweep(self, wanted: SweepRequest, z: Sequence[Float32]) -> list[Float32]:
        """One Euler step.

        Parameters
        ----------
        wanted : SweepRequest
            What passes :meth:`check`.
        z : sequence of float32 ``[len, dim]``
            One for each window; none for block 0, which draws its own.

        Returns
        -------
        list of ndarray
            For each window the next z, float32 ``[len, dim]``; from the last block the rows wanted, float32
            ``[n, 256]``.
        """
        dim = self._manifest.model.dim

        def compute(reader: BlockReader, part: Sequence[int]) -> list[Float32]:
            noisy = np.stack([z[index] if z else noise(wanted, index, dim) for index in part])
            rows, stepped = reader.sweep_step(stack(wanted.windows, part), noisy)
            if stepped is not None:
                return list(stepped)
            return [row[wanted.take[index] :] for index, row in zip(part, rows, strict=True)]

        return await self._answer(wanted, compute)

    def _sweep_blob(self, peer_id: str, body: dict[str, Any], size: int) -> int:
        """Bytes of z that must come with a sweep; asked before any of them is read."""
        del peer_id, size
        wanted = _parse(SweepRequest, body)
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
            if subject not in self._genesis:
                self._genesis[subject] = await asyncio.to_thread(State.genesis, self._manifest, subject)
            return self._genesis[subject]
        what = "embedding" if subject == EMBEDDING else f"state of block {subject}"
        raise RpcRefused("unknown-state", f"this peer does not have that {what}", self._offer().to_body())

    # -- work ------------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        wanted: LogprobsRequest | SweepRequest,
        compute: Callable[[BlockReader, Sequence[int]], list[Float32]],
    ) -> list[Float32]:
        """One array per window, in order, computed piece by piece when it is this request's turn."""
        self._check_block(wanted.block)
        if self._waiting >= MAX_WAITING:
            retry = min(10.0, self._waiting * self._usual_seconds)
            raise RpcRefused("busy", f"{self._waiting} requests are waiting already", {"retry_after": retry})
        self._waiting += 1
        try:
            block_state = await self._state(wanted.block, wanted.digest)
            embedding = await self._state(EMBEDDING, wanted.embedding_digest)
            async with self._turn:
                began = self._clock.now()
                answers = await self._compute(block_state, embedding, wanted.windows, compute)
                self._usual_seconds += 0.2 * (self._clock.now() - began - self._usual_seconds)
        except RpcRefused:
            raise
        except BlockswarmError as error:  # the worker has ended, or moved to another block, under the request
            log.debug("a request could not be computed: %s", error)
            raise RpcRefused("not-serving", "this peer stops serving") from None
        finally:
            self._waiting -= 1
        self.answered += 1
        return answers

    async def _compute(
        self,
        block_state: State,
        embedding: State,
        windows: Sequence[bytes],
        compute: Callable[[BlockReader, Sequence[int]], list[Float32]],
    ) -> list[Float32]:
        answers: list[Float32] = [np.empty(0, np.float32)] * len(windows)
        for part in pieces(windows):

            def piece(part: Sequence[int] = part) -> list[Float32]:
                return compute(self._reader(block_state, embedding), part)

            for index, answer in zip(part, await self._worker(piece), strict=True):
                answers[index] = answer
        return answers

    def _reader(self, block_state: State, embedding: State) -> BlockReader:
        """The reader of a pair of states, made when it is new. On the worker."""
        from blockswarm.model.readout import BlockReader

        key = (block_state.subject, block_state.digest, embedding.digest)
        reader = self._readers.get(key)
        if reader is None:
            model, recipe = self._manifest.model, self._manifest.recipe
            reader = BlockReader(
                model, recipe, block_state.subject, block_state.values, embedding.values, device=self._device
            )
            self._readers[key] = reader
            while len(self._readers) > KEPT_READERS:
                self._readers.popitem(last=False)
        self._readers.move_to_end(key)
        return reader


def _parse(kind: Any, body: dict[str, Any]) -> Any:
    try:
        return kind.parse(body)
    except MessageError as error:
        raise RpcRefused("bad-request", str(error)) from None
