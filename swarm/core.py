"""The client's own view of one swarm: who is there, what they can serve, how well they have answered.

All of it runs in the client's trio loop. Sessions (:mod:`blockswarm.swarm.session`) do the asking.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import trio

from blockswarm.clock import SystemClock
from blockswarm.dht.errors import RpcError
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.counts.choosing import find_counts
from blockswarm.swarm.drafting.blend import OVER_TARGET
from blockswarm.swarm.drafting.shelf import Predictor, Shelf
from blockswarm.swarm.errors import ArgumentError, ClientError, ConnectError, MessageError
from blockswarm.swarm.holders import HolderBook, Run, gather
from blockswarm.swarm.link import Link, short, words
from blockswarm.swarm.manifest import Manifest, subject_name
from blockswarm.swarm.messages import MAX_STATES, StatesReply, StatesRequest
from blockswarm.swarm.pins import Offer, Pin
from blockswarm.swarm.report import ClientStats, EventLog
from blockswarm.swarm.route import Router

STATES_TIMEOUT = 8.0
"""Seconds a holder gets to say which states it can serve."""

SURVEY_GRACE = 0.2
"""Seconds left to the others once every block has a holder that answered: one stopped holder must not delay all."""

RECORDS_SECONDS = 10.0
"""Age at which directory records are fetched again."""

OFFERS_SECONDS = 3.0
"""Age at which a session has holders asked for their states again; a round is hardly shorter."""

USABLE_SECONDS = 30.0
"""Age up to which a session begins with what is known, while holders are asked again beside it. Over a long line that
saves two or three round trips before the first byte; a state that has gone meanwhile costs one where it is noticed."""

MAX_SURVEYED = 16
"""Holders asked per block; more spares than that help nobody."""


class Pinned(Protocol):
    """What surveys ask of a session."""

    @property
    def pin(self) -> Pin:
        """The states it works with."""
        ...


class Core:
    """One swarm as this client knows it.

    Parameters
    ----------
    nursery : trio.Nursery
        Where its connections and background questions live.
    """

    def __init__(self, nursery: Any) -> None:
        self.nursery = nursery
        self.clock = SystemClock()
        self.events = EventLog()
        self.stats = ClientStats()
        self.link = Link(nursery)
        self.book = HolderBook(self.link, self.clock, self.events.add)
        self.router = Router(salt=os.urandom(16))
        self.shelf = Shelf()
        self.counts: NgramModel | None = None
        """The run's n-gram counts, where this client has their file: then nobody is asked for their rows."""
        self.offers: dict[str, Offer] = {}
        self.sessionless: set[str] = set()
        """Holders that know no sessions and are asked for whole windows."""
        self.trouble: dict[str, str] = {}
        """Why holders on record could not be asked for their states, by peer id."""
        self.sessions: weakref.WeakSet[Pinned] = weakref.WeakSet()
        """Those at work: surveys name their pinned states, so that spare holders keep them too."""
        self._offers_at = -math.inf
        self._records_at = -math.inf
        self._manifest: Manifest | None = None
        self._refreshing = False

    async def connect(
        self, peers: Sequence[tuple[str, str]], run: str | None, timeout: float, counts: str | Path | None = None
    ) -> None:
        """Find the run and its holders.

        Parameters
        ----------
        peers : sequence of (str, str)
            Peer id and multiaddr of peers to begin with.
        run : str, optional
            Run id, or the manifest digest in hex; needed when the peers know several runs.
        timeout : float
            Seconds for all of it.
        counts : str or Path, optional
            File of the run's n-gram counts; by default what the cache has.

        Raises
        ------
        ConnectError
            When nobody can be reached in time or the run is unknown.
        ClientError
            When there are several runs and none was named; they are listed.
        ManifestError
            When what was sent is not the manifest of the run.
        ArgumentError
            When ``counts`` is not the file that the manifest names.
        """
        grouped: dict[str, list[str]] = {}
        for peer_id, address in peers:
            grouped.setdefault(peer_id, []).append(address)
        self.link.prepare()
        for peer_id, addresses in grouped.items():
            self.book.learn(peer_id, addresses)
        with trio.move_on_after(timeout) as scope:
            runs = await self._find_runs()
            self._manifest = await self.book.manifest(choose_run(runs, run))
            if counts is not None or self._manifest.counts is not None:  # a thread only where there is a file to read
                found = await trio.to_thread.run_sync(find_counts, self._manifest, counts)
                if found is not None:
                    self.take_counts(found)
            await self.survey(fresh=True)
        if scope.cancelled_caught:
            tried = ", ".join(address for _, address in peers)
            raise ConnectError(
                f"no swarm found in {timeout:g} s through {tried}: check the addresses, or allow more time"
            )

    async def _find_runs(self) -> list[Run]:
        found: list[Run] = []

        async def ask() -> None:
            found.extend(await self.book.runs())

        clock, failed = await gather([self.book.set_clock, ask])
        if failed is not None and clock is None and self.clock.offset:
            await ask()  # by the wrong clock the records looked expired
        elif failed is not None:
            raise failed
        return found

    @property
    def manifest(self) -> Manifest:
        """The manifest of the run, verified."""
        if self._manifest is None:
            raise ClientError("not connected to a run")
        return self._manifest

    @property
    def blocks(self) -> range:
        """Block numbers of the model."""
        return range(self.manifest.model.blocks)

    @property
    def asked(self) -> Sequence[int]:
        """Whose holders the client needs: the blocks', and those of the counts unless their file is here."""
        return self.blocks if self.counts is not None else self.manifest.served

    def take_counts(self, model: NgramModel) -> None:
        """From now on compute the rows of the run's counts here, and draft with them."""
        self.counts = model
        self.shelf.put("counts", Predictor(lambda: model.next_log_probs, blend=lambda: OVER_TARGET))

    def notify(self, kind: str, text: str, **details: Any) -> None:
        """Record an event."""
        self.events.add(kind, text, **details)

    def counters(self) -> ClientStats:
        """The totals, with what the link and the book count."""
        self.stats.bytes_sent = self.link.bytes_sent
        self.stats.bytes_received = self.link.bytes_received
        self.stats.refused_records = self.book.refused_records
        return self.stats

    async def survey(self, *, fresh: bool = False, blocks: Iterable[int] | None = None) -> None:
        """Bring ``offers`` up to date: who is there, and which states they can serve.

        Parameters
        ----------
        fresh : bool
            Ask even if the last survey is recent.
        blocks : iterable of int, optional
            Only these; all whose holders are needed by default.
        """
        wanted = list(self.asked if blocks is None else blocks)
        everybody = set(wanted) >= set(self.asked)
        now = trio.current_time()
        if fresh or now - self._records_at > RECORDS_SECONDS:
            await self.book.refresh(wanted)
            if everybody:
                self._records_at = now
        if fresh or now - self._offers_at > OFFERS_SECONDS:
            await self._collect_offers(wanted)
            if everybody:
                self._offers_at = now

    async def look_around(self) -> None:
        """Know enough to begin a session; waits for a survey only where nothing younger is known."""
        now = trio.current_time()
        if now - min(self._offers_at, self._records_at) > USABLE_SECONDS:
            await self.survey()
        elif now - self._offers_at > OFFERS_SECONDS:
            self._start_refreshing()

    def keep_fresh(self) -> None:
        """Start a survey beside the running work when the last one is old: records expire within a long session."""
        if trio.current_time() - self._records_at > RECORDS_SECONDS:
            self._start_refreshing()

    def _start_refreshing(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            self.nursery.start_soon(self._refresh_beside)

    async def _refresh_beside(self) -> None:
        try:
            await self.survey()
        except ClientError as error:
            self._records_at = trio.current_time()  # do not try again at once; whoever needs a holder will say so
            self.notify("refused", f"the directory could not be read: {error}")
        finally:
            self._refreshing = False

    def live_offers(self, block: int | None = None) -> list[Offer]:
        """Offers of holders whose record is still valid."""
        blocks = self.blocks if block is None else (block,)
        return [
            self.offers[record.peer_id]
            for number in blocks
            for record in self.book.holders(number)
            if record.peer_id in self.offers and self.offers[record.peer_id].block == number
        ]

    def take_offer(self, peer_id: str, body: object) -> Offer:
        """Believe what a holder says it can serve, if it is well-formed and about the block it is on record for."""
        states = StatesReply.parse(body)
        offer = Offer(peer_id, states.block, states.states, states.embedding)
        self.offers[peer_id] = offer
        return offer

    async def _collect_offers(self, blocks: Sequence[int]) -> None:
        asked = {record.peer_id: block for block in blocks for record in self._nearest(block)}
        uncovered = set(asked.values())
        for peer, offer in list(self.offers.items()):
            if offer.block in blocks and peer not in asked:
                del self.offers[peer]
        send, receive = trio.open_memory_channel[str](math.inf)
        for peer in asked:
            # In the client's own nursery: who answers after the grace still becomes a spare.
            self.nursery.start_soon(self._ask_states, peer, asked[peer], send)
        began = trio.current_time()
        left = set(asked)
        while left:
            grace = max(SURVEY_GRACE, trio.current_time() - began) if not uncovered else STATES_TIMEOUT
            with trio.move_on_after(grace) as scope:
                peer = await receive.receive()
            if scope.cancelled_caught:
                return
            left.discard(peer)
            if peer in self.offers:
                uncovered.discard(asked[peer])

    def _nearest(self, block: int) -> list[Any]:
        records = {record.peer_id: record for record in self.book.holders(block)}
        order = self.router.order(records, work=1, now=trio.current_time())
        return [records[peer] for peer in order[:MAX_SURVEYED]]

    def _pinned(self, block: int) -> tuple[bytes, ...]:
        """Digests that sessions at work need of a holder of ``block``."""
        pins = [session.pin for session in self.sessions]
        names = [name for pin in pins for name in (pin.blocks.get(block), pin.embedding) if name is not None]
        return tuple(dict.fromkeys(name.digest for name in names))[:MAX_STATES]

    async def _ask_states(self, peer: str, block: int, done: Any) -> None:
        try:
            body = StatesRequest(self._pinned(block)).to_body()
            reply = await self.link.call(peer, "states", body, run=self.manifest.digest, timeout=STATES_TIMEOUT)
            offer = self.take_offer(peer, reply.body)
            self.trouble.pop(peer, None)
            if offer.block != block:
                raise MessageError("block", f"is {offer.block}, on record for {subject_name(block)}")
        except (RpcError, MessageError) as error:
            if not isinstance(error, RpcError) or error.code != "timeout":
                self.offers.pop(peer, None)  # one that is only slow still has what it had
            self.trouble[peer] = words(error)
            self.router.failed(peer, now=trio.current_time(), kind="error")
            if not isinstance(error, RpcError) or error.code not in ("unreachable", "timeout", "not-serving"):
                self.notify("refused", f"{short(peer)} ({subject_name(block)}): {error}", block=block, peer_id=peer)
        done.send_nowait(peer)


def choose_run(runs: Sequence[Run], wanted: str | None) -> Run:
    """The one run meant by ``wanted`` (run id, or full digest in hex), or the only one there is.

    Raises
    ------
    ConnectError
        When the named run is not among them.
    ArgumentError
        When the choice is left open.
    """
    names = ", ".join(sorted({run.run_id for run in runs}))
    if wanted is not None:
        fitting = [run for run in runs if wanted in (run.run_id, run.digest.hex())]
        if not fitting:
            raise ConnectError(f"no peer announces run {wanted!r}; there are: {names}")
    else:
        fitting = list(runs)
        if len(fitting) > 1 and len({run.run_id for run in runs}) > 1:
            raise ArgumentError(f"these peers know several runs: {names}; name one with {option('run', 'ID')}")
    if len(fitting) > 1:
        digests = ", ".join(run.digest.hex() for run in fitting)
        raise ArgumentError(
            f"{fitting[0].run_id} is announced with different manifests ({digests}); name one with "
            f"{option('run', 'DIGEST')}"
        )
    return fitting[0]
