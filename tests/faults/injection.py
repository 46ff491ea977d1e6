"""Where faults enter: between a replica and its host's calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.peer.book import RoundBook
from blockswarm.peer.exchange import Caller
from blockswarm.swarm.codec import Compression
from blockswarm.swarm.policy.phases import RoundTimes
from tests.faults.alterations import ALTERATIONS, METHODS, Message, Sender

SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP"}
"""Faults of a process."""

LINES = ("slow link", "cut link")
"""Faults of a line."""

PHASES = ("meet", "scatter", "reduce", "gather", "commit")
ROLES = ("member", "leader")
FAULTS = (*SIGNALS, *LINES, *ALTERATIONS)

BEGINS = {phase: phase for phase in PHASES} | {"reduce": "decide"}
"""The name under which a round announces that a phase begins."""

LATE_BY = 0.15
"""Seconds after the end of its phase at which a message over a slow line arrives."""


@dataclass(frozen=True)
class Fault:
    """What one replica does wrong in one round."""

    kind: str
    """One of `FAULTS`."""
    phase: str
    role: str

    @property
    def method(self) -> str:
        """The message it is about."""
        return METHODS[self.phase, self.role]


def phase_end(times: RoundTimes, phase: str) -> float:
    """When a phase of the matrix is over."""
    ends = times.meet_end, times.scatter_end, times.decide_end, times.gather_end, times.close
    return dict(zip(PHASES, ends, strict=True))[phase]


def values_in(book: RoundBook, message: Message, peer_id: str) -> int:
    """Values that a message of a round encodes for a peer; 0 before the list."""
    if book.members is None or book.round != message.body.get("round") or peer_id not in book.members.members:
        return 0
    if message.method == "round.result":
        begin, end = book.bounds[message.body["part"]]
    else:
        begin, end = book.seats.slice_of(book.members.members.index(peer_id))
    return end - begin


@dataclass
class Line:
    """A replica's way to the others: its host's calls, altered while it has a fault.

    It is a `blockswarm.peer.exchange.Caller`, so a round cannot tell it from the host.
    """

    caller: Caller
    identity: Identity
    run_digest: bytes
    compression: Compression
    clock: Clock
    book: RoundBook | None = None
    """Of the round that is on."""
    fault: Fault | None = None
    times: RoundTimes | None = None
    """Of the round that the fault is in."""
    cut_from: set[str] = field(default_factory=set)
    """Peers that nothing reaches, and nothing comes from."""
    sent: dict[str, Message] = field(default_factory=dict)
    """What was sent last, by method."""
    before: Mapping[str, Message] = field(default_factory=dict)
    """The same of the rounds before."""
    refused: list[str] = field(default_factory=list)
    """What others said to altered messages."""
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    """Messages on a slow line whose sender has given them up."""
    _told: Counter[str] = field(default_factory=Counter)

    def begin(self, fault: Fault | None, times: RoundTimes, book: RoundBook) -> None:
        """A round begins: what was sent in those before is the material of replays."""
        self.before, self.sent = {**self.before, **self.sent}, {}
        self.fault, self.times = fault, times
        self.book = book
        self.cut_from.clear()
        self._told.clear()
        self.refused.clear()

    def heal(self) -> None:
        """Everything arrives again, as it is sent."""
        self.fault = None
        self.cut_from.clear()

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        blob: Any = b"",
        max_blob: int = 0,
        timeout: float,
    ) -> Reply:
        """See `blockswarm.dht.host.Host.call`."""
        if peer_id in self.cut_from:
            await asyncio.sleep(timeout)
            raise RpcError("timeout", f"no answer in {timeout:.1f} s")
        message = Message(method, dict(body), bytes(blob))
        self.sent.setdefault(method, message)
        fault = self.fault
        if fault is None or method != fault.method:
            return await self.caller.call(peer_id, method, body, blob=blob, max_blob=max_blob, timeout=timeout)
        if fault.kind == "slow link":
            return await self._late(peer_id, message, timeout)
        return await self._altered(peer_id, message, fault.kind, max_blob, timeout)

    async def _late(self, peer_id: str, message: Message, timeout: float) -> Reply:
        """The message arrives after the phase, when its sender has stopped waiting for an answer."""
        assert self.times is not None and self.fault is not None
        arrives = phase_end(self.times, self.fault.phase) + LATE_BY
        task = asyncio.create_task(self._deliver(peer_id, message, arrives))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        await asyncio.sleep(timeout)
        raise RpcError("timeout", f"no answer in {timeout:.1f} s")

    async def _deliver(self, peer_id: str, message: Message, arrives: float) -> None:
        await self.clock.sleep_until(arrives)
        try:
            await self.caller.call(peer_id, message.method, message.body, blob=message.blob, max_blob=0, timeout=2.0)
        except RpcError as error:
            self.refused.append(str(error))

    async def _altered(self, peer_id: str, message: Message, kind: str, max_blob: int, timeout: float) -> Reply:
        index = self._told[message.method]
        self._told[message.method] += 1
        values = 0 if self.book is None else values_in(self.book, message, peer_id)
        sender = Sender(self.identity, self.run_digest, self.compression, self.before, index, values)
        *first, last = ALTERATIONS[kind](sender, message) if kind in ALTERATIONS else [message]
        for extra in first:
            await self._try(peer_id, extra, timeout)
        try:
            return await self.caller.call(
                peer_id, last.method, last.body, blob=last.blob, max_blob=max_blob, timeout=timeout
            )
        except RpcError as error:
            self.refused.append(str(error))
            raise

    async def _try(self, peer_id: str, message: Message, timeout: float) -> None:
        try:
            await self.caller.call(peer_id, message.method, message.body, blob=message.blob, timeout=timeout)
        except RpcError as error:
            self.refused.append(str(error))
