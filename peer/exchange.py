"""What the phases of a round share: whom we talk to, until when, and what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Blob, Reply
from blockswarm.peer.book import RoundBook
from blockswarm.peer.heads import Head
from blockswarm.peer.line_meter import LineMeter
from blockswarm.peer.merging import Merge, MergeShare
from blockswarm.peer.states import State
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.parts import Bandwidth
from blockswarm.swarm.policy.phases import RoundTimes
from blockswarm.swarm.policy.standing import Standing

log = logging.getLogger(__name__)
T = TypeVar("T")

HEAVY_BYTES = 256 * 1024
"""Arithmetic on more than this leaves the event loop, which must answer others within 50 ms."""

MALFORMED = frozenset({"bad-request", "bad-statement", "too-large"})
"""Codes of a message that its receiver could not read."""


class Caller(Protocol):
    """The part of a host that a round needs."""

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        blob: Blob = ...,
        max_blob: int = ...,
        timeout: float,
    ) -> Reply:
        """See `blockswarm.dht.host.Host.call`."""
        ...


class RoundFailed(Exception):
    """The round ends here without a commit; the text says why. Nothing is lost: the work is carried."""


@dataclass(frozen=True)
class Guest:
    """A contributor's update that we bring into a round beside our own."""

    contribution: Contribution
    data: bytes
    """The whole update, encoded as the manifest says."""


@dataclass
class Exchange:
    """One subject's part in one round, as its phases see it."""

    caller: Caller
    identity: Identity
    manifest: Manifest
    clock: Clock
    book: RoundBook
    times: RoundTimes
    parent: State
    delta: npt.NDArray[np.float32]
    """Own update: live values minus the parent's; float32, the subject's length."""
    samples: int
    replicas: tuple[str, ...]
    """Replicas on record, without ourselves."""
    look_again: Callable[[], Awaitable[tuple[str, ...]]]
    """A fresh look at who is on record, those that are still joining included. Raises nothing, and ends by itself."""
    reachable: bool = True
    meter: LineMeter = field(default_factory=LineMeter)
    """What this peer knows of its line, for the size of its part; learns from what is sent here."""
    line: Bandwidth = field(init=False)
    """The same as the round begins: what is announced, and then stands in the list."""
    may_be_alone: bool = True
    """Whether a round without others is ours to commit: not when this peer may have lost touch with them."""
    listens_since: float = 0.0
    """Since when this peer has followed the meeting without a gap, Unix seconds."""
    standing: Standing = field(default_factory=Standing)
    """Whose updates of this subject had to be refused lately."""
    guests: tuple[Guest, ...] = ()
    owed: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    """By part, see `Reduced.owed`: ours to bring in again."""
    shortened: dict[str, float] = field(default_factory=dict)
    """Members to whose part centered clipping left little, and which share of it; known for our own part alone."""
    on_phase: Callable[[str], None] = lambda _: None
    """Told the name of each phase as it begins."""

    look: asyncio.Task[None] | None = None
    """A fresh look at the records, once one was begun."""
    answered: set[str] = field(default_factory=set)
    """Peers that answered our meet message: alive, whether they take part or not."""
    kept_out_by: dict[str, int] = field(default_factory=dict)
    """Peers that keep us out because our updates had to be refused, and until which round."""
    not_understood_by: dict[str, str] = field(default_factory=dict)
    """Peers that refused what we sent for its form, and their words: they are there, and do not hear us."""
    ahead: list[Head] = field(default_factory=list)
    """Peers whose state outweighs ours."""
    outweighed: frozenset[bytes] = frozenset()
    """Heads of lines that have more samples than ours and yet lose to it."""
    apart: list[Head] = field(default_factory=list)
    """Peers that hold such a head, or its successor."""
    merge: Merge | None = None
    """Work of a lost line of ours that is still to be brought in."""
    note_merge: Callable[[], Awaitable[bool]] | None = None
    """Keeps on disk what this round takes of it, before it is sent; whether that went well."""
    merged: MergeShare | None = None
    """What this round has of it."""
    problems: dict[str, str] = field(default_factory=dict)
    """Peer → what went wrong when we called it, the last word."""
    bytes_sent: int = 0
    bytes_saved: int = 0
    """Bytes that were not sent because values travel encoded, against float32."""
    bytes_received: int = 0
    upload_seconds: float = 0.0
    """Time that sending one whole encoded update takes here, from the parts sent in this round; 0: not measured."""
    phase_ms: dict[str, float] = field(default_factory=dict)
    sends: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.line = self.meter.line

    @property
    def own_id(self) -> str:
        """This peer's id."""
        return self.identity.peer_id

    @property
    def looking(self) -> bool:
        """Whether a fresh look at the records is under way."""
        return self.look is not None and not self.look.done()

    @property
    def compression(self) -> str:
        """How values of this round are encoded; alone nothing travels, so nothing needs to be lost."""
        alone = len(self.book.require_members().members) == 1
        return "none" if alone else self.manifest.averaging.compression

    def owe(self, part: int, owed: npt.NDArray[np.float32] | None) -> None:
        """Add to what we owe for a part."""
        if owed is not None:
            before = self.owed.get(part)
            self.owed[part] = owed if before is None else before + owed

    def left(self, until: float) -> float:
        """Seconds until the moment ``until``; never negative."""
        return max(0.0, until - self.clock.now())

    def require_before(self, until: float, what: str) -> None:
        """End the round when ``until`` has passed: who woke up late stops, it does not send (docs/protocol.md §5)."""
        if self.clock.now() > until:
            raise RoundFailed(f"{what} came {self.clock.now() - until:.1f} s after its deadline")

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        until: float,
        blob: bytes = b"",
        values: int = 0,
        max_blob: int = 0,
    ) -> Reply | None:
        """Call a peer, bounded by ``until``; a failure is written down and gives ``None``.

        ``values`` is the number of values that ``blob`` encodes.
        """
        seconds = self.left(until)
        if seconds <= 0:
            return None
        burst = (self.book.round, method)
        if blob:
            self.meter.up.begin(burst, self.clock.now())
        try:
            async with asyncio.timeout(seconds + 0.5):  # the host's own timeout should speak first
                reply = await self.caller.call(peer_id, method, body, blob=blob, max_blob=max_blob, timeout=seconds)
        except RpcError as error:
            self.problems[peer_id] = f"{method}: {error}"
            if error.code in MALFORMED:
                self.not_understood_by[peer_id] = self.problems[peer_id]
            return None
        except TimeoutError:
            self.problems[peer_id] = f"{method}: no answer in {seconds:.1f} s"
            return None
        if blob:
            self.meter.up.end(burst, len(blob), self.clock.now())
        self.bytes_sent += len(blob)
        self.bytes_saved += 4 * values - len(blob)
        self.bytes_received += len(reply.blob)
        return reply

    def send(self, action: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a send that this round owns; it ends with the round's grace at the latest."""
        task = asyncio.create_task(action)
        self.sends.add(task)
        task.add_done_callback(self.sends.discard)
        return task

    def broadcast(
        self,
        peers: Iterable[str],
        method: str,
        body: Mapping[str, Any],
        *,
        until: float,
        blob: bytes = b"",
        values: int = 0,
    ) -> list[asyncio.Task[Reply | None]]:
        """Send the same message to several peers at once, without waiting."""
        return [
            self.send(self.call(peer_id, method, body, until=until, blob=blob, values=values))
            for peer_id in peers
            if peer_id != self.own_id
        ]

    async def finish(self) -> None:
        """Let the last sends end, until the round closes at most; then drop them."""
        pending = set(self.sends)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=self.left(self.times.close) + 0.2)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=1.0)


async def off_loop(size: int, work: Callable[..., T], *args: Any) -> T:
    """Run arithmetic here when ``size`` bytes are few, else in a thread, so that the event loop stays responsive."""
    if size < HEAVY_BYTES:
        return work(*args)
    return await asyncio.to_thread(work, *args)
