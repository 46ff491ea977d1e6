"""What a swarm's directory says, asked of whichever peer answers and verified here.

Any peer serves the signed records of the DHT to clients. Nothing it says is believed for its own sake: a record counts
when its owner's signature holds, a manifest when it hashes to the digest of the run. So one living peer is enough, and
it need not be the one the client first connected to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RecordError
from blockswarm.dht.records import BlockRecord, ProgressRecord, Record, RunRecord, open_sealed
from blockswarm.swarm.errors import ClientError, ConnectError, ManifestError
from blockswarm.swarm.link import Link, Reply, short, words
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.manifest_fields import MAX_MANIFEST_BYTES
from blockswarm.swarm.race import race

T = TypeVar("T")

ASK_TIMEOUT = 10.0
"""Seconds one peer gets for a question about the directory; the answer may need a walk through the DHT."""

ASK_PATIENCE = 1.0
"""Seconds of silence after which another peer is asked beside it."""

MAX_ASKED = 12
"""Peers tried for one question."""

MAX_RECORDS = 1024
"""Records read from one answer."""

SERVING_STATES = ("TRAINING", "CONTRIBUTING", "SERVING")


@dataclass(frozen=True)
class Run:
    """A training run some peer announces: its id, full manifest digest, and who can give the manifest."""

    run_id: str
    digest: bytes
    name: str
    peers: tuple[str, ...]


class HolderBook:
    """Known peers, and the newest verified record of every holder.

    Parameters
    ----------
    link : Link
        How peers are asked.
    clock : SystemClock
        Its offset is set from the swarm's time when the local clock is off.
    notify : callable
        Called as ``notify(kind, text, **details)`` for what a user may want to know.
    """

    def __init__(self, link: Link, clock: SystemClock, notify: Callable[..., None]) -> None:
        self._link = link
        self._clock = clock
        self._notify = notify
        self._sources: dict[str, float] = {}  # peer id → when it last answered, 0 for never
        self._records: dict[int, dict[str, BlockRecord]] = {}
        self._manifest: Manifest | None = None
        self.refused_records = 0
        """Records that were not believed: forged, expired, of another run."""

    def learn(self, peer_id: str, addresses: Iterable[str]) -> None:
        """Remember a peer that may be asked."""
        self._sources.setdefault(peer_id, 0.0)
        self._link.learn(peer_id, addresses)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Peers that have answered or hold a valid record, with their addresses, for a later connect."""
        # Also read from other threads, so everything is copied before it is walked through.
        live = {peer for records in list(self._records.values()) for peer in list(records)}
        return {
            peer: self._link.addresses(peer) for peer, last in list(self._sources.items()) if last > 0 or peer in live
        }

    async def ask(
        self,
        method: str,
        body: dict[str, Any],
        accept: Callable[[str, Reply], T],
        *,
        first: Iterable[str] = (),
        max_blob: int = 0,
    ) -> T:
        """Put a question to peers until ``accept(peer, reply)`` raises nothing.

        Parameters
        ----------
        method, body
            The call, of a method that is not bound to a run.
        accept : callable
            Turns an answer into the result, or raises.
        first : iterable of str
            Peers to try before the others.
        max_blob : int
            Most bytes of the answer.

        Raises
        ------
        ConnectError
            When nobody gave an acceptable answer, with every peer's reason.
        """

        async def attempt(peer: str) -> T:
            reply = await self._link.call(peer, method, body, max_blob=max_blob, timeout=ASK_TIMEOUT)
            result = accept(peer, reply)
            self._sources[peer] = self._clock.now()
            return result

        preferred = list(dict.fromkeys(first))
        rest = sorted(
            (peer for peer in self._sources if peer not in preferred),
            key=lambda peer: (not self._link.connected(peer), -self._sources[peer]),
        )
        outcome = await race([*preferred, *rest][:MAX_ASKED], attempt, lambda _: ASK_PATIENCE)
        if outcome.won is None:
            reasons = "; ".join(f"{short(peer)}: {words(error)}" for peer, error in outcome.failed.items())
            raise ConnectError(f"no peer answered {method}: {reasons or 'none is known'}")
        return outcome.won.result

    async def set_clock(self, tolerance: float = 5.0) -> None:
        """Follow the swarm's time when the local clock is off by more than ``tolerance`` seconds.

        A laptop whose clock is minutes off would otherwise see every record as expired and every block as bare.
        """
        began = self._clock.now()

        def accept(_: str, reply: Reply) -> float:
            told = reply.body.get("time")
            if not isinstance(told, int | float) or not 0 < told < 1e12:
                raise ClientError("told no time")
            return float(told)

        theirs = await self.ask("hello", {}, accept)
        offset = theirs - (began + self._clock.now()) / 2
        if abs(offset) > tolerance:
            self._clock.offset += offset
            self._notify("clock", f"this machine's clock is off by {-offset:+.1f} s; following the swarm's")

    async def runs(self) -> list[Run]:
        """All runs the first answering peer knows, each with its announcers."""

        def accept(_: str, reply: Reply) -> list[RunRecord]:
            found = [record for record in self._open(reply) if isinstance(record, RunRecord)]
            if not found:
                raise ClientError("knows no run")
            return found

        grouped: dict[tuple[str, bytes], list[RunRecord]] = {}
        for record in await self.ask("records", {"kind": "runs"}, accept):
            self.learn(record.peer_id, record.addrs)
            grouped.setdefault((record.run_id, record.digest), []).append(record)
        return [
            Run(run_id, digest, records[0].name, tuple(record.peer_id for record in records))
            for (run_id, digest), records in sorted(grouped.items())
        ]

    async def manifest(self, run: Run) -> Manifest:
        """Fetch the manifest of ``run`` and check that it hashes to the announced digest.

        Raises
        ------
        ManifestError
            When some peer sent bytes but none of them were the right ones.
        ConnectError
            When nobody has it.
        """
        wrong: list[str] = []

        def accept(peer: str, reply: Reply) -> Manifest:
            if hashlib.sha256(reply.blob).digest() != run.digest:
                wrong.append(short(peer))
                self._notify("refused", f"{short(peer)} sent a manifest that is not {run.run_id}", peer_id=peer)
                raise ClientError(f"its manifest does not hash to {run.digest.hex()[:12]}…")
            manifest = Manifest.from_canonical(reply.blob, source=f"manifest from {short(peer)}")
            if manifest.run_id != run.run_id:
                raise ClientError(f"its manifest is of {manifest.run_id}, not {run.run_id}")
            return manifest

        try:
            made = await self.ask(
                "manifest", {"run_id": run.run_id}, accept, first=run.peers, max_blob=MAX_MANIFEST_BYTES
            )
        except ConnectError as error:
            if wrong:
                raise ManifestError(
                    f"{run.run_id}: {', '.join(wrong)} sent a manifest whose SHA-256 is not the announced "
                    f"{run.digest.hex()[:12]}…: do not trust them, and name other peers"
                ) from error
            raise
        self._manifest = made
        return made

    async def refresh(self, blocks: Iterable[int]) -> None:
        """Ask for the records of ``blocks``, side by side, and keep the newest of each holder.

        A peer that knows no live holder of a block is not the last word while there are others to ask.
        """
        shards = range(self._bound().limits.directory_shards)
        results = await gather([self._refresher(block, shard) for block in blocks for shard in shards])
        for error in results:
            if error is not None and not isinstance(error, ConnectError):
                raise error

    def peers(self, blocks: Iterable[int]) -> list[str]:
        """Peer ids of those that can serve any of ``blocks``, each once."""
        return list(dict.fromkeys(record.peer_id for block in blocks for record in self.holders(block)))

    def holders(self, block: int, *, serving: bool = True) -> list[BlockRecord]:
        """Valid records of ``block``: those that can serve, or everybody not gone."""
        now = self._clock.now()
        kept = self._records.get(block, {})
        for peer in [peer for peer, record in kept.items() if record.expires <= now]:
            del kept[peer]
        return [
            record
            for record in kept.values()
            if (record.state in SERVING_STATES if serving else record.state != "OFFLINE")
        ]

    async def progress(self, subject: int) -> list[ProgressRecord]:
        """The last round reports of the replicas of ``subject`` (block number, or -1 for the embedding)."""
        manifest = self._bound()

        def accept(_: str, reply: Reply) -> list[ProgressRecord]:
            return [
                record
                for record in self._open(reply)
                if isinstance(record, ProgressRecord) and record.run_id == manifest.run_id and record.subject == subject
            ]

        return await self.ask("records", {"kind": "progress", "run_id": manifest.run_id, "subject": subject}, accept)

    def _refresher(self, block: int, shard: int) -> Callable[[], Awaitable[None]]:
        manifest = self._bound()
        body: dict[str, Any] = {"kind": "block", "run_id": manifest.run_id, "block": block}
        if shard:
            body["shard"] = shard

        def accept(_: str, reply: Reply) -> None:
            kept = self._records.setdefault(block, {})
            for record in self._open(reply):
                if not isinstance(record, BlockRecord) or (record.run_id, record.block) != (manifest.run_id, block):
                    self.refused_records += 1
                    continue
                if record.peer_id not in kept or kept[record.peer_id].issued <= record.issued:
                    kept[record.peer_id] = record
                    self.learn(record.peer_id, record.addrs)
            if not shard and not self.holders(block):
                raise ClientError(f"knows no holder of block {block}")

        async def refresh() -> None:
            await self.ask("records", body, accept)

        return refresh

    def _open(self, reply: Reply) -> list[Record]:
        sealed = reply.body.get("records")
        if not isinstance(sealed, list):
            raise ClientError("sent no list of records")
        opened: list[Record] = []
        for data in sealed[:MAX_RECORDS]:
            try:
                if not isinstance(data, bytes):
                    raise RecordError("not bytes")
                opened.append(open_sealed(data, now=self._clock.now()))
            except RecordError as error:
                self.refused_records += 1
                self._notify("refused", f"a record was not believed: {error}")
        return opened

    def _bound(self) -> Manifest:
        if self._manifest is None:
            raise ClientError("no run is chosen yet")
        return self._manifest


async def gather(jobs: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run ``jobs`` side by side; each entry of the result is a job's result or the exception it ended with."""
    waiting = list(jobs)
    results: list[Any] = [None] * len(waiting)

    async def run(index: int, job: Callable[[], Awaitable[Any]]) -> None:
        try:
            results[index] = await job()
        except Exception as error:
            results[index] = error

    async with trio.open_nursery() as nursery:
        for index, job in enumerate(waiting):
            nursery.start_soon(run, index, job)
    return results
