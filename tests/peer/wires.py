"""A network in memory, for tests of the round's logic: real desks, books and drivers; the wire and time are simulated.

Modules that import `Wires` run on a loop of virtual time (see ``conftest.py``): a deadline takes no time to come, and
none passes because the machine is busy. Bodies go through msgpack as on the real wire. A test can cut a peer off at a
chosen message, or alter what it sends. Rounds over the real network stand in ``tests/integration``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

import msgpack
import numpy as np

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.model.config import ModelConfig
from blockswarm.peer.desk import Desk
from blockswarm.peer.exchange import Exchange
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.policy.phases import next_round_to_join
from tests.methods import Methods
from tests.virtual_time import LoopClock

SMALLEST = ModelConfig(kind="mlp", dim=16, blocks=3, layers=1, heads=1, context=16)
PHASES = {"meet": 0.8, "scatter": 0.6, "decide": 0.6, "gather": 0.6, "commit": 0.9}
SECONDS = 3.6
STARTS_IN = 0.1
"""Seconds from the making of the wires to the end of training of their first round."""


def quick_manifest(now: float, *, first: int = 1, **choices: Any) -> Manifest:
    """A run of very small blocks, in which the meeting of round ``first`` begins in a moment.

    A phase ends as soon as all are through. ``choices`` are given to `create_manifest`.
    """
    manifest = create_manifest(
        name="wires",
        now=now,
        size=SMALLEST,
        round_seconds=SECONDS,
        phases=PHASES,
        **{"compression": "fp16", "seed": 1} | choices,
    )
    genesis = now + STARTS_IN - first * SECONDS + sum(PHASES.values())
    return Manifest.from_mapping(manifest.to_mapping() | {"genesis_time": genesis})


@dataclass
class Replica(Methods):
    """One peer of the network in memory."""

    identity: Identity
    state: State
    manifest: InitVar[Manifest]
    clock: InitVar[Clock]
    desk: Desk = field(init=False)
    methods: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    silent: bool = False
    """Hears and says nothing, as a stopped or killed process."""
    alter: Callable[[str, dict[str, Any], bytes], tuple[dict[str, Any], bytes]] | None = None
    silent_from: str | None = None
    """The method at whose sending this peer falls silent."""
    silent_at: int = 1
    """At which sending of that method: the first, or, when some have got it already, a later one."""

    def __post_init__(self, manifest: Manifest, clock: Clock) -> None:
        self.desk = Desk(self.identity.peer_id, manifest, clock, self.head)
        self.desk.register(self)

    def head(self, subject: int) -> State | None:
        return self.state if subject == self.state.subject else None


class Wires:
    """Delivers calls between replicas."""

    def __init__(self, count: int, *, subject: int = 0, **choices: Any) -> None:
        self.clock = LoopClock()
        self.manifest = manifest = quick_manifest(self.clock.now(), **choices)
        self.subject = subject
        genesis = State.genesis(manifest, subject)
        self.replicas: dict[str, Replica] = {}
        self.on_record = True
        """Whether replicas know each other as a round begins, or find each other when they look once more."""
        self.lost: set[tuple[str, str, str]] = set()
        """Messages that never arrive: (sender, receiver, method)."""
        for _ in range(count):
            identity = Identity.ephemeral()
            self.replicas[identity.peer_id] = Replica(identity, genesis, manifest, self.clock)

    @property
    def ids(self) -> list[str]:
        return list(self.replicas)

    def __getitem__(self, index: int) -> Replica:
        return list(self.replicas.values())[index]

    async def deliver(
        self, sender: Replica, target_id: str, method: str, body: Any, blob: bytes, timeout: float
    ) -> Reply:
        if sender.silent_from == method:
            sender.silent_at -= 1
            sender.silent = sender.silent or sender.silent_at <= 0
        unsent = sender.silent  # what was sent before arrives, even of one broadcast
        target = self.replicas[target_id]
        body = dict(body)
        if sender.alter is not None:
            body, blob = sender.alter(method, body, bytes(blob))
        await asyncio.sleep(0)
        if unsent or target.silent or (sender.identity.peer_id, target_id, method) in self.lost:
            await asyncio.sleep(timeout)
            raise RpcError("timeout", f"no answer in {timeout:.1f} s")
        body = msgpack.unpackb(msgpack.packb(body))
        try:
            reply = await target.ask(sender.identity.peer_id, method, body, blob)
        except RpcRefused as error:
            raise RpcError(error.code, error.text, error.detail) from None
        if target.silent:
            raise RpcError("timeout", "no answer")
        return Reply(msgpack.unpackb(msgpack.packb(dict(reply.body))), bytes(reply.blob))

    def caller(self, replica: Replica) -> Any:
        wires = self

        class Caller:
            async def call(
                self, peer_id: str, method: str, body: Any, *, blob: Any = b"", max_blob: int = 0, timeout: float = 5
            ) -> Reply:
                return await wires.deliver(replica, peer_id, method, body, blob, timeout)

        return Caller()

    def exchange(self, replica: Replica, round_number: int, delta: np.ndarray, samples: int) -> Exchange:
        """A replica's part in a round with the given update."""
        own = replica.identity.peer_id
        others = tuple(peer_id for peer_id in self.ids if peer_id != own)

        async def look_again() -> tuple[str, ...]:
            return others

        return Exchange(
            caller=self.caller(replica),
            identity=replica.identity,
            manifest=self.manifest,
            clock=self.clock,
            book=replica.desk.book(self.subject, round_number),
            times=replica.desk.times(round_number),
            parent=replica.state,
            delta=delta,
            samples=samples,
            replicas=others if self.on_record else (),
            look_again=look_again,
            standing=replica.desk.standing(self.subject),
            meter=replica.desk.meter,
        )

    def next_round(self) -> int:
        """The first round everyone can still take part in from its beginning."""
        rounds = self.manifest.rounds
        return next_round_to_join(self.clock.now(), self.manifest.genesis_time, rounds.seconds, rounds.lengths)

    async def round(
        self, deltas: list[np.ndarray], samples: list[int] | None = None, *, number: int | None = None
    ) -> list[RoundResult]:
        """One round of all replicas, each with its own update; those who fall silent still return."""
        if number is None:
            number = self.next_round()
        exchanges = [
            self.exchange(replica, number, delta, count)
            for replica, delta, count in zip(self.replicas.values(), deltas, samples or [16] * len(deltas), strict=True)
        ]
        return await self.run(exchanges)

    async def run(self, exchanges: list[Exchange]) -> list[RoundResult]:
        """One round of all replicas, in the order of the replicas."""
        await self.clock.sleep_until(exchanges[0].times.train_end)
        results = await asyncio.gather(*(run_round(exchange) for exchange in exchanges))
        for replica, exchange, result in zip(self.replicas.values(), exchanges, results, strict=True):
            await exchange.finish()
            if result.state is not None:
                replica.state = result.state
        return results
