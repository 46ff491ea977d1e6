"""One peer of ``benchmarks/averaging.py``: it speaks JSON lines with the benchmark, which starts it.

    python -m benchmarks.averaging_peer ours|hivemind|floor '{"index": 0, …}'

Every kind answers the same requests: ``addresses`` (who the others are), ``prepare`` (new tensors; hivemind also finds
its group now), ``go`` (average, and say when it began and ended, in Unix seconds).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import uvloop

CHECKED = 1000
"""Values at the beginning of the tensor that are compared with the true mean."""

RAW_PROTOCOL = "/blockswarm-benchmark/raw/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PIECE = 1 << 20
LAG_PERIOD = 0.005
"""Seconds between two looks at how late the event loop is."""
FOUND_SECONDS = 60.0
"""Longest time hivemind may take to find its group."""


class Kind(Protocol):
    """A way to average."""

    async def start(self) -> dict[str, Any]: ...

    async def meet(self, others: dict[str, list[str]]) -> None: ...

    async def prepare(self, number: int) -> None: ...

    async def go(self, number: int) -> dict[str, Any]: ...

    async def stop(self) -> None: ...


def tensor(index: int, number: int, size: int) -> npt.NDArray[np.float32]:
    """The update of peer ``index`` in run ``number``, float32 ``[size]``; anyone can draw its beginning."""
    random = np.random.default_rng([index, number])
    return 1e-3 * random.standard_normal(size, dtype=np.float32)


def error(found: npt.NDArray[np.float32], number: int, peers: int) -> float:
    """Largest difference of the beginning of an average to the true mean, over the mean's own size."""
    mean = np.mean([tensor(index, number, CHECKED) for index in range(peers)], axis=0)
    return float(np.abs(found[:CHECKED] - mean).max() / np.abs(mean).max())


class Ours:
    """A replica of a swarm, whole but for training: host, desk, and rounds of one subject."""

    def __init__(self, options: dict[str, Any]) -> None:
        from blockswarm.clock import SystemClock
        from blockswarm.dht.identity import Identity
        from blockswarm.swarm.manifest import Manifest

        self.index, self.peers = options["index"], options["peers"]
        self.manifest = Manifest.from_canonical(bytes.fromhex(options["manifest"]), source="the benchmark")
        self.identity = Identity.ephemeral()
        self.clock = SystemClock()

    async def start(self) -> dict[str, Any]:
        from blockswarm.clock import SystemClock
        from blockswarm.dht.host import Host
        from blockswarm.model.learner import keep_freed_memory
        from blockswarm.peer.desk import Desk
        from blockswarm.peer.states import State

        keep_freed_memory()  # as every volunteer's learner does
        self.host = await Host.start(
            self.identity, listen=[LOOPBACK], run_digest=self.manifest.digest, clock=SystemClock(), relay="off"
        )
        self.state = State.genesis(self.manifest, 0)
        self.desk = Desk(self.host.peer_id, self.manifest, self.clock, lambda subject: self.state)
        self.desk.register(self.host)
        return {"peer": self.host.peer_id, "addresses": self.host.addresses()}

    async def meet(self, others: dict[str, list[str]]) -> None:
        self.others = tuple(peer for peer in others if peer != self.host.peer_id)
        for peer in self.others:
            self.host.learn(peer, others[peer])
            await self.host.call(peer, "hello", {}, timeout=10)

    async def prepare(self, number: int) -> None:
        self.delta = tensor(self.index, number, self.state.values.size)

    async def go(self, number: int) -> dict[str, Any]:
        from blockswarm.peer.exchange import Exchange
        from blockswarm.peer.lag import LagMeter
        from blockswarm.peer.round import run_round

        times = self.desk.times(number)
        self.clock.offset += times.train_end - self.clock.now()  # rounds follow each other without the time between
        began: dict[str, float] = {}

        def phase(name: str) -> None:
            began[name] = time.time()

        async def look_again() -> tuple[str, ...]:
            return self.others

        exchange = Exchange(
            caller=self.host,
            identity=self.identity,
            manifest=self.manifest,
            clock=self.clock,
            book=self.desk.book(0, number),
            times=times,
            parent=self.state,
            delta=self.delta,
            samples=16,
            replicas=self.others,
            look_again=look_again,
            meter=self.desk.meter,
            on_phase=phase,
        )
        sent = self.host.traffic.sent
        lag = LagMeter(LAG_PERIOD)
        watching = asyncio.create_task(lag.watch())
        result = await run_round(exchange)
        ended = time.time()
        watching.cancel()
        await exchange.finish()
        if result.state is None or len(result.accepted) != self.peers:
            return {"failure": result.failure or f"only {len(result.accepted)} accepted: {result.rejected}"}
        change = result.state.values[:CHECKED] - self.state.values[:CHECKED]
        self.state = result.state
        return {
            "began": began["scatter"],
            "ended": ended,
            "sent": self.host.traffic.sent - sent,
            "error": error(change, number, self.peers),
            "phases_ms": result.phases_ms,
            "lag_ms": lag.samples(),
        }

    async def stop(self) -> None:
        await self.host.stop()


class Floor:
    """The same bytes over the same daemons' raw streams, all to all, with nothing computed."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.share = 4 * options["values"] // options["peers"]

    async def start(self) -> dict[str, Any]:
        from blockswarm.clock import SystemClock
        from blockswarm.dht.host import Host
        from blockswarm.dht.identity import Identity

        self.host = await Host.start(Identity.ephemeral(), listen=[LOOPBACK], clock=SystemClock(), relay="off")
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "raw"
        self.server = await self.host.control.accept_streams(RAW_PROTOCOL, path, self._swallow)
        return {"peer": self.host.peer_id, "addresses": self.host.addresses()}

    async def _swallow(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.share
        while left:
            piece = await reader.read(min(left, PIECE))
            if not piece:
                raise EOFError(f"{peer} sent {left} bytes less than it should")
            left -= len(piece)
        writer.write(b"k")
        await writer.drain()

    async def meet(self, others: dict[str, list[str]]) -> None:
        self.others = [peer for peer in others if peer != self.host.peer_id]
        for peer in self.others:
            self.host.learn(peer, others[peer])
            await self.host.call(peer, "hello", {}, timeout=10)

    async def prepare(self, number: int) -> None:
        self.data = np.random.default_rng(number).bytes(self.share)

    async def _send(self, peer: str) -> None:
        async with self.host.control.open_stream(peer, RAW_PROTOCOL) as (reader, writer):
            view = memoryview(self.data)
            for start in range(0, self.share, PIECE):
                writer.write(view[start : start + PIECE])
                await writer.drain()
            await reader.readexactly(1)

    async def go(self, number: int) -> dict[str, Any]:
        began = time.time()
        for _ in range(2):  # there, and back
            await asyncio.gather(*(self._send(peer) for peer in self.others))
        return {"began": began, "ended": time.time(), "sent": 2 * len(self.others) * self.share, "error": 0.0}

    async def stop(self) -> None:
        self.server.close()
        await self.host.stop()
        self.folder.cleanup()


class Hivemind:
    """``hivemind.DecentralizedAverager`` as it comes, its group found before the time is taken."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    async def start(self) -> dict[str, Any]:
        import hivemind
        import torch

        options = self.options
        self.dht = hivemind.DHT(start=True, host_maddrs=[LOOPBACK], initial_peers=options["initial"])
        self.averager = hivemind.DecentralizedAverager(
            [torch.zeros(options["values"])],
            dht=self.dht,
            prefix="benchmark",
            target_group_size=options["peers"],
            min_group_size=options["peers"],
            min_matchmaking_time=3.0,
            request_timeout=1.0,
            part_size_bytes=options["part_bytes"],
            start=True,
        )
        return {
            "peer": str(options["index"]),
            "addresses": [str(address) for address in self.dht.get_visible_maddrs()],
        }

    async def meet(self, others: dict[str, list[str]]) -> None: ...

    async def prepare(self, number: int) -> None:
        import torch
        from hivemind.averaging.control import AveragingStage

        with self.averager.get_tensors() as tensors:
            tensors[0].copy_(torch.from_numpy(tensor(self.options["index"], number, self.options["values"])))
        self.step = self.averager.step(wait=False, require_trigger=True, timeout=FOUND_SECONDS)
        end = time.monotonic() + FOUND_SECONDS
        while self.step.stage != AveragingStage.AWAITING_TRIGGER:
            if self.step.done() or time.monotonic() > end:
                raise RuntimeError("hivemind found no group")
            await asyncio.sleep(0.01)

    async def go(self, number: int) -> dict[str, Any]:
        began = time.time()
        self.step.allow_allreduce()
        found = await asyncio.to_thread(self.step.result, FOUND_SECONDS)
        ended = time.time()
        if not found or len(found) != self.options["peers"]:
            return {"failure": f"hivemind averaged {len(found or ())} of {self.options['peers']} peers"}
        with self.averager.get_tensors() as tensors:
            return {
                "began": began,
                "ended": ended,
                "error": error(tensors[0][:CHECKED].numpy().copy(), number, self.options["peers"]),
            }

    async def stop(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()


async def serve(kind: Kind) -> None:
    """Answer requests until standard input ends."""
    loop = asyncio.get_running_loop()
    print(json.dumps(await kind.start()), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if "addresses" in request:
                await kind.meet(request["addresses"])
            elif "prepare" in request:
                await kind.prepare(request["prepare"])
            else:
                answer = await kind.go(request["go"])
        except Exception as problem:
            answer = {"failure": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)
    await kind.stop()


if __name__ == "__main__":
    KINDS = {"ours": Ours, "floor": Floor, "hivemind": Hivemind}
    run = asyncio.run if sys.argv[1] == "hivemind" else uvloop.run  # as each runs in life
    run(serve(KINDS[sys.argv[1]](json.loads(sys.argv[2]))))
