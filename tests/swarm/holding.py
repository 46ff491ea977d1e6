"""Holders with real weights and no network: a client's whole way from prompt to text, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import trio

from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord
from blockswarm.model.layout import CHUNK_BYTES, EMBEDDING, chunk_digests, state_digest
from blockswarm.model.mixing import Readout, mix_log_probs, sweep_noise, without_veto
from blockswarm.model.readout import BlockReader
from blockswarm.peer.batching import joined, noise, pieces, split_z, stack
from blockswarm.peer.chain import drawn
from blockswarm.peer.sessions import Asked, HolderSessions
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.canonical import canonical_bytes
from blockswarm.swarm.chain_messages import ChainRequest
from blockswarm.swarm.chunks import Chunk
from blockswarm.swarm.link import Reply
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import LogprobsRequest, StateHead, StateName, StatesReply, SweepRequest
from blockswarm.swarm.narrow_z import narrowed, widened
from blockswarm.swarm.session_messages import SessionRequest
from tests.swarm.answering import World
from tests.swarm.signing import certify

Weights = Callable[[int], Float32]
"""The values of a subject."""


class Model:
    """The blocks of a model, computed as a volunteer does, in pieces of windows of one length."""

    def __init__(self, manifest: Manifest, weights: Weights | None = None) -> None:
        weights = weights or manifest.verify_genesis
        self.manifest = manifest
        blocks = range(manifest.model.blocks)
        self.values = {subject: weights(subject) for subject in (EMBEDDING, *blocks)}
        model, recipe, table = manifest.model, manifest.recipe, self.values[EMBEDDING]
        self._ways: dict[tuple[bytes, int], Any] = {}
        self.readers = [BlockReader(model, recipe, block, self.values[block], table) for block in blocks]

    def ways(self, token: bytes, block: int) -> Any:
        """Where z of a traversal is left for a block, and found by it."""
        return self._ways.setdefault((token, block), trio.open_memory_channel[bytes](1))

    def head(self, subject: int) -> StateHead:
        """The state of ``subject``, certified."""
        values = self.values[subject]
        digest = state_digest(values)
        certificate = certify(self.manifest, [Identity.ephemeral()], subject, 1, digest, 64)
        return StateHead(1, digest, 64, values.size, tuple(chunk_digests(values)), certificate)

    def logprobs(self, body: Mapping[str, Any]) -> Reply:
        """Answer ``logprobs``."""
        wanted = LogprobsRequest.parse(body)
        return self._answer(wanted, lambda part: self.readers[wanted.block].log_probs(stack(wanted.windows, part)))

    def sweep(self, body: Mapping[str, Any], blob: bytes) -> Reply:
        """Answer ``sweep``."""
        wanted = SweepRequest.parse(body)
        dim = self.manifest.model.dim
        z = split_z(bytearray(blob), wanted.block, list(map(len, wanted.windows)), dim)
        found: list[Float32] = [np.empty(0, np.float32)] * len(wanted.windows)
        last = wanted.block == self.manifest.model.blocks - 1
        for index in range(len(wanted.windows)):
            noisy = z[index] if z else noise(wanted, index, dim)
            rows, stepped = self.readers[wanted.block].sweep_step(stack(wanted.windows, [index]), noisy[None])
            found[index] = rows[0, wanted.take[index] :] if stepped is None else stepped[0]
        return Reply({"last": last}, bytes(joined(found)))

    def last_row(self, chunk: Chunk, readout: Readout, seed: int) -> Float32:
        """What the window of ``chunk`` predicts, computed by itself: the row that decoding byte by byte takes."""
        window = np.frombuffer(chunk.windows[0], np.uint8)[None]
        if readout == "parallel":
            return mix_log_probs([without_veto(reader.log_probs(window)[0, -1:]) for reader in self.readers])[0]
        z: Float32 | None = sweep_noise(seed, chunk.starts[0], window.shape[1], self.manifest.model.dim)[None]
        for reader in self.readers:
            assert z is not None
            rows, z = reader.sweep_step(window, z)
        return without_veto(rows[0, -1:])[0]

    def _answer(self, wanted: LogprobsRequest, compute: Callable[[Sequence[int]], Float32]) -> Reply:
        assert max(map(len, wanted.windows)) <= self.manifest.model.context
        found: list[Float32] = [np.empty(0, np.float32)] * len(wanted.windows)
        for part in pieces(wanted.windows):
            for index, rows in zip(part, compute(part), strict=True):
                found[index] = rows[wanted.take[index] :]
        return Reply({}, bytes(joined(found)))


class Holder:
    """A peer that serves one block of ``model``.

    Attributes
    ----------
    left : int
        Requests it still answers before it is gone; negative: for ever.
    seconds : callable
        How long an answer takes, from the bytes of its rows.
    gives_states : bool
        Whether it lets others fetch its states.
    chains : bool
        Whether it knows sweeps in one traversal.
    has_sessions : bool
        Whether it keeps what it was told of a text for the parallel readout.
    sent : list of (str, int)
        Method (in a traversal: kind of step) and size of every request that it answered, z included.
    """

    def __init__(self, model: Model, block: int) -> None:
        self.left = -1
        self.gives_states = True
        self.chains = True
        self.has_sessions = True
        self.sent: list[tuple[str, int]] = []
        self.seconds: Callable[[int], float] = lambda size: 0.001
        self._model, self._block = model, block
        self.forget()
        manifest = model.manifest
        self.states = StatesReply(
            block,
            (StateName(0, manifest.genesis_digest(block)),),
            (StateName(0, manifest.genesis_digest(EMBEDDING)),),
        )

    async def __call__(self, method: str, body: dict[str, Any], blob: bytes = b"") -> Reply:
        """Answer one request."""
        if not self.left:
            raise RpcError("unreachable", "gone")
        if method == "states":
            return Reply(self.states.to_body(), b"")
        if method == "state.head" and self.gives_states and body["subject"] in (self._block, EMBEDDING):
            return Reply(self._model.head(body["subject"]).to_body())
        if method == "state.chunk":
            begin = body["index"] * CHUNK_BYTES
            return Reply({}, self._model.values[body["subject"]].tobytes()[begin : begin + CHUNK_BYTES])
        if (method == "chain" and not self.chains) or (method == "session.logprobs" and not self.has_sessions):
            raise RpcError("unknown-method", "an older peer")
        if method not in ("logprobs", "sweep", "chain", "session.logprobs"):
            raise RpcError("unknown-state", "not here")
        self.left -= 1
        if method == "chain":
            return await self._chain(ChainRequest.parse(body))
        self.sent.append((method, len(canonical_bytes(body)) + len(blob)))
        if method == "session.logprobs":
            reply = self._in_session(SessionRequest.parse(body), b"")
        else:
            reply = self._model.logprobs(body) if method == "logprobs" else self._model.sweep(body, blob)
        await trio.sleep(self.seconds(len(reply.blob)))
        return reply

    def forget(self) -> None:
        """Lose all sessions, as a holder that has too many, or that was started again."""
        self._sessions = HolderSessions(self._model.manifest.model, lambda: 0.0)

    def _in_session(self, wanted: SessionRequest, blob: bytes) -> Reply:
        """Answer a session's request as a volunteer's desk does."""
        model = self._model.manifest.model
        z = split_z(bytearray(blob), wanted.block, [wanted.positions], model.dim) if wanted.seed is not None else []
        asked = Asked("client", wanted, wanted.windows(model.context), z[0] if z else None)
        (answer,) = self._sessions.answer(self._model.readers[wanted.block], [asked])
        if isinstance(answer, RpcRefused):
            raise RpcError(answer.code, answer.text)
        return Reply({}, bytes(joined([answer])))

    async def _chain(self, wanted: ChainRequest) -> Reply:
        step, ways = wanted.sweep, self._model.ways
        z = await ways(wanted.token, step.block)[1].receive() if step.block else b""
        dim = self._model.manifest.model.dim
        self.sent.append((type(step).__name__, len(canonical_bytes(wanted.to_body())) + len(z)))
        if z and wanted.narrow:
            z = bytes(widened(z, step.positions, dim))
        known = isinstance(step, SessionRequest)
        reply = self._in_session(step, z) if known else self._model.sweep(step.to_body(), z)
        await trio.sleep(self.seconds(len(reply.blob)))
        if wanted.next is not None:
            after = np.frombuffer(reply.blob, "<f4")
            ways(wanted.token, step.block + 1)[0].send_nowait(narrowed(after) if wanted.narrow else reply.blob)
            return Reply({"last": False})
        if wanted.draw is None:
            return Reply({"last": True}, reply.blob)
        return Reply({"last": True}, drawn(wanted, [np.frombuffer(reply.blob, "<f4").reshape(-1, 256)]))


class Swarm(World):
    """A connected core, with holders by name: ``"1a"`` is holder a of block 1."""

    def __init__(self, nursery: Any, model: Model, *names: str) -> None:
        self.holders = {name: Holder(model, int(name[:-1])) for name in names}
        self.ids = {name: Identity.ephemeral().peer_id for name in names}
        """Their peer ids."""
        super().__init__(nursery, model.manifest, **{self.ids[name]: holder for name, holder in self.holders.items()})
        self.book.entered = [self._record(model.manifest, name) for name in names]

    def _record(self, manifest: Manifest, name: str) -> BlockRecord:
        block = int(name[:-1])
        return BlockRecord(
            run_id=manifest.run_id,
            block=block,
            peer_id=self.ids[name],
            state="TRAINING",
            digest=manifest.genesis_digest(block),
            embedding_digest=manifest.genesis_digest(EMBEDDING),
            issued=1.0,
            expires=2.0,
        )
