"""One holder of a small swarm, with real weights and switchable faults; run by ``small_swarm.py``."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
from signing import certify

from blockswarm.clock import SystemClock
from blockswarm.dht import lookup
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord, ProgressRecord, RunRecord, block_key, progress_key, runs_key, seal
from blockswarm.dht.rpc import Handler, Reply, Request
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING
from blockswarm.model.mixing import sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.peer.giving import serve_states
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import LogprobsRequest, StateName, StatesReply, SweepRequest

FAULTS = ("well", "nan", "short", "unnormalised", "busy", "slow", "silent", "broken", "unknown", "liar", "boaster")
LISTEN = ["/ip4/127.0.0.1/tcp/0"]
LIFETIME = 500.0
MODEL = ModelConfig(dim=16, blocks=3, layers=1, heads=2, context=32)
ROUND_SAMPLES = 640
"""Samples that each round adds."""


def weights(manifest: Manifest, subject: int, round_number: int) -> np.ndarray:
    """The state of ``subject`` after a round: genesis, moved a little by each round."""
    values = manifest.verify_genesis(subject).copy()
    if round_number:
        noise = np.random.default_rng([round_number, subject + 1]).standard_normal(values.size)
        values += (0.02 * noise).astype(np.float32)
    return values


class Holder:
    """A peer that serves the last three states of one block."""

    def __init__(self, name: str, manifest: Manifest, identity: Identity, entrance: list[str]) -> None:
        self.name = name
        self.block = int(name[:-1])
        self.manifest = manifest
        self.identity = identity
        self.entrance = entrance
        self.round = 0
        self.how, self.left = "well", -1
        self.served = 0
        self.frozen = False
        self.host: Host | None = None
        self._readers: dict[tuple[bytes, bytes], BlockReader] = {}
        self.states: list[tuple[StateName, np.ndarray]] = []
        self.embeddings: list[tuple[StateName, np.ndarray]] = []
        self.store = StateStore(SystemClock())
        self.commit(0)

    def commit(self, round_number: int) -> None:
        """Hold the state of ``round_number`` as the newest of at most three."""
        self.round = round_number
        for subject, kept in ((self.block, self.states), (EMBEDDING, self.embeddings)):
            state = self.state(subject, round_number)
            self.store.commit(state)
            kept.insert(0, (state.name, state.values))
            del kept[3:]

    def state(self, subject: int, round_number: int) -> State:
        """A state as this holder has it: everybody's values, certified by itself."""
        values, samples = weights(self.manifest, subject, round_number), ROUND_SAMPLES * round_number
        state = State.make(subject, round_number, values, samples=samples)
        if not round_number:
            return state
        certificate = certify(self.manifest, [self.identity], subject, round_number, state.digest, samples)
        return State.make(subject, round_number, values, samples=samples, certificate=certificate)

    async def start(self) -> None:
        """Come up (again) and say so."""
        self.host = await Host.start(
            self.identity,
            listen=LISTEN,
            initial_peers=self.entrance,
            run_digest=self.manifest.digest,
            clock=SystemClock(),
        )
        self.host.register("states", self.tell_states)
        self.host.register("logprobs", self.logprobs)
        self.host.register("sweep", self.sweep, max_blob=1 << 24)
        serve_states(self, self.store)
        offer_manifest(self.host, self.manifest)

    async def reset(self) -> None:
        """Undo whatever a test did."""
        self.how, self.served = "well", 0
        if self.host is None:
            await self.start()
            await asyncio.sleep(0.2)
        elif self.frozen:
            os.kill(self.daemon_pid, signal.SIGCONT)
            self.frozen = False
        if self.round:
            self.states.clear()
            self.embeddings.clear()
            for subject in (self.block, EMBEDDING):
                self.store.forget(subject)
            self.commit(0)
        await self.announce()

    async def announce(self) -> None:
        """Put a signed record into the DHT."""
        assert self.host is not None
        now = self.host.clock.now()
        record = BlockRecord(
            run_id=self.manifest.run_id,
            block=self.block,
            peer_id=self.host.peer_id,
            state="TRAINING",
            round=self.round,
            digest=self.states[0][0].digest,
            embedding_digest=self.embeddings[0][0].digest,
            samples_per_second=100.0 + self.block,
            addrs=tuple(self.host.addresses()),
            software="test",
            issued=now,
            expires=now + LIFETIME,
        )
        key = block_key(self.manifest.run_id, self.block)
        await store(self.host, key, seal(self.identity, record), record.expires)
        progress = ProgressRecord(
            run_id=self.manifest.run_id,
            subject=self.block,
            peer_id=self.host.peer_id,
            round=self.round,
            digest=self.states[0][0].digest,
            accepted=(self.host.peer_id,),
            samples=640,
            certified=True,
            heldout_ce=5.0,
            issued=now,
            expires=now + LIFETIME,
        )
        key = progress_key(self.manifest.run_id, self.block)
        await store(self.host, key, seal(self.identity, progress), progress.expires)

    def register(self, method: str, handler: Handler) -> None:
        """Answer ``state.head`` or ``state.chunk`` as a volunteer does, with whatever fault is switched on."""

        async def answer(request: Request) -> Reply:
            self.served += 1
            reply = await handler(request)
            if method == "state.chunk" and self.how == "liar":
                return Reply({}, bytes(len(reply.blob)))
            if method == "state.head" and self.how == "boaster":
                return Reply(reply.body | {"samples": 10**9})
            return reply

        assert self.host is not None
        self.host.register(method, answer)

    def states_body(self) -> dict[str, Any]:
        """What it can serve."""
        names = tuple(name for name, _ in self.states), tuple(name for name, _ in self.embeddings)
        return StatesReply(self.block, *names).to_body()

    async def tell_states(self, request: Request) -> Reply:
        """Method ``states``."""
        return Reply(self.states_body())

    async def logprobs(self, request: Request) -> Reply:
        """Method ``logprobs``, with whatever fault is switched on."""
        asked = LogprobsRequest.parse(request.body)
        reader = await self.before(asked.block, asked.digest, asked.embedding_digest)
        rows = []
        for window, take in zip(asked.windows, asked.take, strict=True):
            rows.append(reader.log_probs(np.frombuffer(window, np.uint8)[None])[0, take:])
        return Reply({}, self.spoil(np.concatenate(rows)))

    async def sweep(self, request: Request) -> Reply:
        """Method ``sweep``: one Euler step."""
        asked = SweepRequest.parse(request.body)
        reader = await self.before(asked.block, asked.digest, asked.embedding_digest)
        dim, begin, rows, next_z = self.manifest.model.dim, 0, [], []
        carried = np.frombuffer(request.blob, "<f4").reshape(-1, dim)
        for window, start, take in zip(asked.windows, asked.starts, asked.take, strict=True):
            size = len(window)
            z = sweep_noise(asked.seed, start, size, dim) if asked.block == 0 else carried[begin : begin + size]
            begin += size
            logp, stepped = reader.sweep_step(np.frombuffer(window, np.uint8)[None], z[None])
            rows.append(logp[0, take:])
            if stepped is not None:
                next_z.append(stepped[0])
        last = asked.block == self.manifest.model.blocks - 1
        return Reply({"last": last}, self.spoil(np.concatenate(rows if last else next_z)))

    async def before(self, block: int, digest: bytes, embedding: bytes) -> BlockReader:
        """Fail or wait as told, then find the weights that were asked for."""
        self.served += 1
        if self.how == "slow":
            await asyncio.sleep(1.0)
        if self.how == "silent":
            await asyncio.sleep(25.0)
        if self.how == "busy" and self._spend():
            raise RpcRefused("busy", "test", {"retry_after": 0.05})
        if self.how == "broken":
            raise RpcRefused("internal", "told to fail")
        found = [values for name, values in self.states if name.digest == digest and self.how != "unknown"]
        table = [values for name, values in self.embeddings if name.digest == embedding]
        if block != self.block or not found or not table:
            raise RpcRefused("unknown-state", "not here (any more)", self.states_body())
        if (digest, embedding) not in self._readers:
            m = self.manifest
            self._readers[digest, embedding] = BlockReader(m.model, m.recipe, self.block, found[0], table[0])
        return self._readers[digest, embedding]

    def spoil(self, values: np.ndarray) -> bytes:
        """The answer, damaged as told."""
        values = values.astype("<f4")
        if self.how == "nan":
            values[0, 0] = np.nan
        if self.how == "unnormalised":
            values += 0.5
        data = values.tobytes()
        return data[:-4] if self.how == "short" else data

    def _spend(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.how = "well"
        return True

    @property
    def daemon_pid(self) -> int:
        """Process id of its p2pd."""
        assert self.host is not None
        return int(self.host._daemon.pid)


async def store(host: Host, key: str, sealed: bytes, expires: float) -> None:
    """Store a record, insisting."""
    for _ in range(20):
        if await lookup.store(host.node, key, host.peer_id, sealed, expires, timeout=5):
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{key} could not be stored")


def offer_manifest(host: Host, *manifests: Manifest) -> None:
    """Method ``manifest``."""

    async def give(request: Request) -> Reply:
        for manifest in manifests:
            if manifest.run_id == request.body["run_id"]:
                return Reply({}, manifest.canonical())
        raise RpcRefused("wrong-run", "not this run")

    host.register("manifest", give, run_bound=False)


async def announce_run(host: Host, manifest: Manifest) -> None:
    """Put a run record into the DHT."""
    now = host.clock.now()
    record = RunRecord(
        run_id=manifest.run_id,
        name=manifest.name,
        digest=manifest.digest,
        peer_id=host.peer_id,
        addrs=tuple(host.addresses()),
        issued=now,
        expires=now + LIFETIME,
    )
    await store(host, runs_key(), seal(host.identity, record), record.expires)
