"""A small swarm in a process of its own, moved by one JSON command per line on its standard input.

Every holder is a real peer (own identity, own p2pd, signed records in a real DHT, real weights); what a volunteer adds
to that, training and rounds, is left out, so a test decides what the swarm does next. Each command is answered by one
JSON line on standard output. The client under test never runs in here: it and hivemind cannot share a process.

    {"do": "kill", "holder": "1a"}                  p2pd of holder a of block 1 gets SIGKILL
    {"do": "freeze" | "thaw", "holder": "1a"}       SIGSTOP, SIGCONT
    {"do": "revive", "holder": "1a"}                a killed holder comes back, same identity
    {"do": "behave", "holder": "1a", "how": "nan"}  see FAULTS; "well" ends it; "count" limits how often
    {"do": "advance", "holder": "1a", "rounds": 1}  commit rounds; all holders of a block commit the same states
    {"do": "served"}                                requests answered by each holder since the last time
    {"do": "reset"}                                 everybody lives, behaves and holds the states of round 0
    {"do": "boot", "how": "forge"}                  the bootstrap node turns bad, learns a second run, or dies
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blockswarm.clock import SystemClock
from blockswarm.dht import lookup
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord, ProgressRecord, RunRecord, block_key, progress_key, runs_key, seal
from blockswarm.dht.rpc import Reply, Request
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, state_digest
from blockswarm.model.mixing import sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.messages import LogprobsRequest, StateName, StatesReply, SweepRequest

FAULTS = ("well", "nan", "short", "unnormalised", "busy", "slow", "silent", "broken", "unknown")
LISTEN = ["/ip4/127.0.0.1/tcp/0"]
LIFETIME = 500.0
MODEL = ModelConfig(dim=16, blocks=3, layers=1, heads=2, context=32)


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
        self.commit(0)

    def commit(self, round_number: int) -> None:
        """Hold the state of ``round_number`` as the newest of at most three."""
        self.round = round_number
        for subject, kept in ((self.block, self.states), (EMBEDDING, self.embeddings)):
            values = weights(self.manifest, subject, round_number)
            kept.insert(0, (StateName(round_number, state_digest(values)), values))
            del kept[3:]

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


class Swarm:
    """A bootstrap node and its holders."""

    def __init__(self) -> None:
        self.manifest = create_manifest(name="test", now=0.0, size=MODEL, round_seconds=60.0, seed=7)
        self.holders: dict[str, Holder] = {}

    async def start(self, names: list[str]) -> dict[str, Any]:
        """Start everybody; the reply tells addresses, ids and the manifest."""
        self.boot = await Host.start(
            Identity.ephemeral(), listen=LISTEN, run_digest=self.manifest.digest, clock=SystemClock()
        )
        self._true_records = self.boot._server._methods["records"].handler
        offer_manifest(self.boot, self.manifest)
        entrance = self.boot.addresses()
        self.holders = {name: Holder(name, self.manifest, Identity.ephemeral(), entrance) for name in names}
        await asyncio.gather(*(holder.start() for holder in self.holders.values()))
        await asyncio.sleep(0.3)
        await announce_run(self.boot, self.manifest)
        await asyncio.gather(*(holder.announce() for holder in self.holders.values()))
        return {
            "peers": entrance,
            "run_id": self.manifest.run_id,
            "manifest": self.manifest.canonical().hex(),
            "holders": {name: holder.identity.peer_id for name, holder in self.holders.items()},
            "addresses": {name: holder.host.addresses() for name, holder in self.holders.items() if holder.host},
        }

    async def carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command."""
        do = command.pop("do")
        if do == "start":
            return await self.start(command["holders"])
        if do == "served":
            counts = Counter({name: holder.served for name, holder in self.holders.items()})
            for holder in self.holders.values():
                holder.served = 0
            return dict(counts)
        if do == "boot":
            return await self._boot(**command)
        if do == "reset":
            self.boot.register("records", self._true_records, run_bound=False)
            offer_manifest(self.boot, self.manifest)
            await asyncio.gather(*(holder.reset() for holder in self.holders.values()))
            await announce_run(self.boot, self.manifest)
            return {}
        holder = self.holders[command["holder"]]
        if do in ("kill", "freeze", "thaw"):
            number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}[do]
            os.kill(holder.daemon_pid, number)
            holder.frozen = do == "freeze"
            if do == "kill" and holder.host is not None:
                await holder.host.stop()
                holder.host = None
        elif do == "revive":
            await holder.start()
            await asyncio.sleep(0.2)
            await holder.announce()
        elif do == "behave":
            assert command["how"] in FAULTS
            holder.how, holder.left = command["how"], command.get("count", -1)
        elif do == "advance":
            for _ in range(command.get("rounds", 1)):
                holder.commit(holder.round + 1)
            await holder.announce()
        else:
            raise ValueError(do)
        return {}

    async def _boot(self, how: str) -> dict[str, Any]:
        """Make the bootstrap node forge, or announce a second run, or die."""
        boot = self.boot
        if how == "kill":
            os.kill(boot._daemon.pid, signal.SIGKILL)
            await boot.stop()
        elif how == "forge":
            now = boot.clock.now()
            stranger, victim = Identity.ephemeral(), Identity.ephemeral()
            record = BlockRecord(
                run_id=self.manifest.run_id,
                block=0,
                peer_id=stranger.peer_id,
                state="TRAINING",
                digest=b"\1" * 32,
                embedding_digest=b"\1" * 32,
                addrs=(f"/ip4/127.0.0.1/tcp/1/p2p/{stranger.peer_id}",),
                issued=now,
                expires=now + 60,
            )
            good = seal(stranger, record)
            forged = good.replace(stranger.peer_id.encode(), victim.peer_id.encode())

            async def records(request: Request) -> Reply:
                reply = await self._true_records(request)
                return Reply({"records": [forged, b"nonsense", *reply.body["records"]]})

            boot.register("records", records, run_bound=False)
        elif how == "lie":

            async def wrong(request: Request) -> Reply:
                other = dataclasses.replace(self.manifest, seed=8)
                return Reply({}, other.canonical())

            boot.register("manifest", wrong, run_bound=False)
        elif how == "second-run":
            other = create_manifest(name="other", now=0.0, size=MODEL, round_seconds=60.0, seed=9)
            offer_manifest(boot, self.manifest, other)
            # One record per owner: the second run needs an announcer of its own.
            self.second = await Host.start(
                Identity.ephemeral(), listen=LISTEN, initial_peers=boot.addresses(), clock=SystemClock()
            )
            await asyncio.sleep(0.3)
            await announce_run(self.second, other)
            return {"run_id": other.run_id}
        return {}

    async def stop(self) -> None:
        """Everybody goes."""
        hosts = [holder.host for holder in self.holders.values()] + [self.boot, getattr(self, "second", None)]
        await asyncio.gather(*(host.stop() for host in hosts if host is not None), return_exceptions=True)


async def main() -> None:
    """Carry out commands until standard input ends."""
    torch.set_num_threads(1)
    swarm = Swarm()
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                answer = await swarm.carry_out(json.loads(line))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        await swarm.stop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    asyncio.run(main())
