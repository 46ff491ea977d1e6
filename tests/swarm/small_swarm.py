"""A small swarm in a process of its own, moved by one JSON command per line on its standard input.

Every holder is a real peer (own identity, own p2pd, signed records in a real DHT, real weights); what a volunteer adds
to that, training and rounds, is left out, so a test decides what the swarm does next. Each command is answered by one
JSON line on standard output. The client under test never runs in here: it and hivemind cannot share a process.

    {"do": "kill", "holder": "1a"}                  p2pd of holder a of block 1 gets SIGKILL
    {"do": "freeze" | "thaw", "holder": "1a"}       SIGSTOP, SIGCONT
    {"do": "revive", "holder": "1a"}                a killed holder comes back, same identity
    {"do": "behave", "holder": "1a", "how": "nan"}  one of FAULTS; "well" ends it; "count" limits how often
    {"do": "advance", "holder": "1a", "rounds": 1}  commit rounds; all holders of a block commit the same states
    {"do": "served"}                                requests answered by each holder since the last time
    {"do": "reset"}                                 everybody lives, behaves and holds the states of round 0
    {"do": "boot", "how": "forge"}                  the bootstrap node turns bad, learns a second run, or dies
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from typing import Any

import torch
from commands import answer_commands
from one_holder import FAULTS, LISTEN, MODEL, Holder, announce_run, offer_manifest

from blockswarm.clock import SystemClock
from blockswarm.dht.host import Host
from blockswarm.dht.identity import Identity
from blockswarm.dht.records import BlockRecord, seal
from blockswarm.dht.rpc import Reply, Request
from blockswarm.swarm.manifest import create_manifest


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
        return self._info()

    def _info(self) -> dict[str, Any]:
        return {
            "peers": self.boot.addresses(),
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
            return self._info()  # who was killed listens at another address now
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
    try:
        await answer_commands(swarm.carry_out)
    finally:
        await swarm.stop()


if __name__ == "__main__":
    asyncio.run(main())
