"""Holders of a run in a process of their own, moved by one JSON command a line; each is answered by one JSON line.

Every holder is a real peer (own identity, own p2pd, signed records in a real DHT) with a volunteer's serving desks.
What is left out is training: rounds are committed when told to.

    {"do": "kill", "block": 1, "at": 3}      who gets the third request to block 1 from now on dies before it answers
    {"do": "end", "block": 1}                the holder of block 1 that answered last dies now
    {"do": "revive"}                         who is dead comes back: same identity and address, nothing kept of sessions
    {"do": "sessions", "kept": false}        holders are of an older version, which knows no sessions; true: ends that
    {"do": "commit"}                         all holders commit a round
    {"do": "settle"}                         revive; sessions are known; records are up to date; what has happened
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from blockswarm.clock import SystemClock
from blockswarm.dht.directory import Directory
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord, RunRecord
from blockswarm.dht.rpc import BlobLimit, Handler, Reply, Request
from blockswarm.peer.chain import ChainDesk
from blockswarm.peer.giving import serve_manifest, serve_states
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import EMBEDDING
from tests.soak.serving.world import MODEL, ROUND_SAMPLES, World
from tests.swarm.commands import answer_commands
from tests.swarm.signing import certify

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
REPLICAS = 2
LIFETIME = 500.0
RENEWED = 120.0
"""Seconds after which the run and all holders are announced again."""

SERVING = ("logprobs", "session.logprobs", "sweep", "chain")
NEWER = ("session.logprobs", "chain")
"""Methods that holders of an older version do not know."""


class Holder:
    """One peer and the block it serves."""

    def __init__(self, swarm: Swarm, block: int) -> None:
        self.block = block
        self.host: Host | None = None
        self.identity = Identity.ephemeral()
        self.leaving: asyncio.Task[None] | None = None
        self.store = StateStore(SystemClock())
        self._swarm = swarm
        self._listen = ANY_PORT
        self._desk: ServingDesk | None = None

    async def start(self) -> None:
        """Come up (again), with empty hands: sessions of an earlier life are lost."""
        swarm = self._swarm
        host = self.host = await Host.start(
            self.identity,
            listen=[self._listen],
            initial_peers=swarm.boot.addresses(),
            run_digest=swarm.world.manifest.digest,
            clock=SystemClock(),
            relay="off",
        )
        self._listen = host.addresses()[0].split("/p2p/")[0]  # a peer that comes back is found where it was
        manifest = swarm.world.manifest
        desk = self._desk = ServingDesk(manifest, self.store, asyncio.to_thread, SystemClock(), block=self.block)
        desk.register(self)
        ChainDesk(manifest, desk, host, swarm.holders_of).register(self)
        serve_states(self, self.store)
        serve_manifest(self, manifest)

    def register(
        self, method: str, handler: Handler, *, max_blob: BlobLimit = 0, run_bound: bool = True, timeout: float = 30.0
    ) -> None:
        """Answer a method as a volunteer does, unless this holder is told to die of it."""

        async def answer(request: Request) -> Reply:
            if method in NEWER and not self._swarm.keeps_sessions:
                raise RpcRefused("unknown-method", "an older peer")
            if method in SERVING:
                await self._swarm.asked(self)
            return await handler(request)

        assert self.host is not None
        self.host.register(method, answer, max_blob=max_blob, run_bound=run_bound, timeout=timeout)

    async def announce(self) -> None:
        """Put a signed record into the DHT."""
        assert self.host is not None
        host, now = self.host, self.host.clock.now()
        head, table = self.store.head(self.block), self.store.head(EMBEDDING)
        assert head is not None and table is not None
        record = BlockRecord(
            run_id=self._swarm.world.manifest.run_id,
            block=self.block,
            peer_id=host.peer_id,
            state="TRAINING",
            round=head.round,
            digest=head.digest,
            embedding_digest=table.digest,
            samples_per_second=100.0,
            addrs=tuple(host.addresses()),
            software="soak",
            issued=now,
            expires=now + LIFETIME,
        )
        await Directory(host, record.run_id, host.clock).announce(record)

    def die(self) -> None:
        """Without a word: p2pd is killed. The rest is put away beside: one of its handlers may have called this."""
        host, self.host = self.host, None
        if host is not None and self._desk is not None:
            os.kill(host._daemon.pid, signal.SIGKILL)
            self._desk.close()
            self.leaving = asyncio.create_task(host.stop())


class Swarm:
    """A bootstrap node and its holders."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.boot: Host
        self.holders = [Holder(self, block) for _ in range(REPLICAS) for block in range(MODEL.blocks)]
        self.keeps_sessions = True
        self._round = 0
        self._struck = 0
        self._doom: tuple[int, int] | None = None  # block, and requests that are left
        self._latest: dict[int, Holder] = {}  # who was asked last
        self._announced = -RENEWED

    def holders_of(self, block: int) -> set[str]:
        """Who is on record."""
        return {holder.identity.peer_id for holder in self.holders if holder.block == block}

    async def start(self) -> dict[str, Any]:
        """Start everybody; tells where."""
        manifest = self.world.manifest
        self.boot = await Host.start(
            Identity.ephemeral(), listen=[ANY_PORT], run_digest=manifest.digest, clock=SystemClock(), relay="off"
        )
        serve_manifest(self.boot, manifest)
        await self.commit()
        await asyncio.gather(*(holder.start() for holder in self.holders))
        return {"peers": self.boot.addresses(), **await self.settle()}

    async def asked(self, holder: Holder) -> None:
        """A request has come to a holder: is it its last?"""
        self._latest[holder.block] = holder
        if self._doom is None or self._doom[0] != holder.block:
            return
        block, left = self._doom
        self._doom = (block, left - 1) if left > 1 else None
        if left <= 1:
            self._struck += 1
            holder.die()
            raise RpcRefused("gone", "dead")  # nobody hears it

    async def carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command."""
        do = command.pop("do")
        if do == "kill":
            self._doom = command["block"], command["at"]
        elif do == "end":
            if (holder := self._latest.get(command["block"])) is not None and holder.host is not None:
                self._struck += 1
                holder.die()
        elif do == "revive":
            await self.revive()
        elif do == "sessions":
            self.keeps_sessions = command["kept"]
        elif do == "commit":
            self._struck += 1
            await self.commit()
        elif do == "settle":
            return await self.settle()
        else:
            raise ValueError(do)
        return {}

    async def commit(self) -> None:
        """The next round, of every block and the embedding."""
        self._round += 1
        manifest, samples = self.world.manifest, ROUND_SAMPLES * self._round
        signers = [holder.identity for holder in self.holders]
        for subject in (EMBEDDING, *range(MODEL.blocks)):
            values = self.world.values(subject, self._round)
            state = State.make(subject, self._round, values, samples=samples)
            proof = certify(manifest, signers, subject, self._round, state.digest, samples)
            state = State.make(subject, self._round, values, samples=samples, certificate=proof)
            for holder in self.holders:
                if subject in (EMBEDDING, holder.block):
                    holder.store.commit(state)

    async def revive(self) -> bool:
        """Whether anybody was dead."""
        dead = [holder for holder in self.holders if holder.host is None]
        await asyncio.gather(*(holder.leaving for holder in dead if holder.leaving is not None))
        await asyncio.gather(*(holder.start() for holder in dead))
        return bool(dead)

    async def settle(self) -> dict[str, Any]:
        """As nothing had happened, apart from rounds that were committed; the round, and how much was done."""
        self._doom, self.keeps_sessions = None, True
        struck, self._struck = self._struck, 0
        revived = await self.revive()
        now = asyncio.get_running_loop().time()
        if revived or struck or now - self._announced > RENEWED:
            await asyncio.gather(self._announce_run(), *(holder.announce() for holder in self.holders))
            self._announced = now
        return {"round": self._round, "struck": struck}

    async def _announce_run(self) -> None:
        boot, manifest = self.boot, self.world.manifest
        now = boot.clock.now()
        record = RunRecord(
            run_id=manifest.run_id,
            name=manifest.name,
            digest=manifest.digest,
            peer_id=boot.peer_id,
            addrs=tuple(boot.addresses()),
            issued=now,
            expires=now + LIFETIME,
        )
        await Directory(boot, manifest.run_id, boot.clock).announce_run(record)

    async def stop(self) -> None:
        """Everybody goes."""
        hosts = [host for host in (getattr(self, "boot", None), *(one.host for one in self.holders)) if host]
        await asyncio.gather(*(host.stop() for host in hosts), return_exceptions=True)


async def main(folder: Path) -> None:
    """Carry out commands until standard input ends."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # that loopback is loopback, and p2pd that is killed
    swarm = Swarm(World(folder))
    try:
        print(json.dumps(await swarm.start()), flush=True)
        await answer_commands(swarm.carry_out)
    finally:
        await swarm.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
