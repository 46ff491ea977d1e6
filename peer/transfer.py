"""Getting a certified state from those who hold it: verified chunk by chunk, from several of them at once.

A newcomer asks holders for the head of a subject, picks one state, and pulls its chunks from everyone who has it. The
chunk digests are bound to the state's digest before the first byte is fetched, so a wrong chunk costs its sender, never
the state. A donor that makes no progress is left for the next one; what has arrived is kept for the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from blockswarm.dht.errors import RpcError
from blockswarm.dht.rpc import Reply
from blockswarm.model.layout import CHUNK_BYTES
from blockswarm.peer.download import Download, TransferError
from blockswarm.peer.states import State
from blockswarm.swarm import certified
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.manifest import Manifest, subject_name
from blockswarm.swarm.messages import ChunkRequest, HeadRequest, StateHead
from blockswarm.swarm.policy.asking import MAX_ASKED
from blockswarm.swarm.statements import StatementError

log = logging.getLogger(__name__)
T = TypeVar("T")

HEAD_SECONDS = 5.0
"""How long a holder may take to say what it has."""

HEAD_GRACE_SECONDS = 1.5
"""How much longer than the first answer others are waited for: one dead holder must not delay a newcomer."""

STALL_SECONDS = 5.0
"""A donor that brings no chunk for so long is left for the next one."""

MAX_PATIENCE = 60.0
"""Patience doubles when all donors have stalled, up to this: a chunk over a slow line takes its time."""

PARALLEL = 4
"""Donors used at once."""

PAUSE_SECONDS = 0.3
"""Between two passes over donors none of which brought anything."""


class Call(Protocol):
    """The part of a host that a transfer needs: ``blockswarm.dht.host.Host.call``."""

    async def __call__(
        self, peer_id: str, method: str, body: Mapping[str, Any], *, max_blob: int = ..., timeout: float
    ) -> Reply:
        """Ask a peer; raises `RpcError` for every failure."""
        ...


@dataclass(frozen=True)
class Offer:
    """A state that a holder can give."""

    peer_id: str
    head: StateHead


def heaviest(offers: Sequence[Offer]) -> StateHead:
    """The state to take of several (docs/protocol.md §10)."""
    return certified.heaviest([offer.head for offer in offers])


class StateFetcher:
    """Fetches states; keeps what an attempt that failed has brought, one unfinished state a subject.

    Parameters
    ----------
    call : Call
        How peers are asked.
    manifest : Manifest
        Says how large a state is and whose signatures count.
    latest_round : callable
        Tells the newest round that can have been committed by now; states of later ones are refused.
    check : callable
        ``check(manifest, subject, head, latest_round)`` raises `StatementError` for a head that must not be believed.
    choose : callable
        Picks one of the believable offers.
    stall : float
        Seconds without progress after which a donor is left.
    parallel : int
        Donors used at once.
    files : mapping, optional
        By subject, where a state is kept while it arrives; of others in memory.
    """

    def __init__(
        self,
        call: Call,
        manifest: Manifest,
        latest_round: Callable[[], int],
        *,
        check: Callable[[Manifest, int, StateHead, int], None] = certified.check_certified,
        choose: Callable[[Sequence[Offer]], StateHead] = heaviest,
        stall: float = STALL_SECONDS,
        parallel: int = PARALLEL,
        files: Mapping[int, Path] | None = None,
    ) -> None:
        self._call = call
        self._manifest = manifest
        self._latest_round = latest_round
        self._check = check
        self._choose = choose
        self._stall = stall
        self._parallel = parallel
        self._files = files or {}
        self._unfinished: dict[int, Download] = {}
        self._working: dict[int, asyncio.Future[Any]] = {}

    async def offers(
        self, subject: int, holders: Iterable[str], *, digest: bytes | None = None
    ) -> tuple[list[Offer], dict[str, str]]:
        """Ask holders for the head of ``subject``, or for the state with ``digest``.

        Returns
        -------
        offers : list of Offer
            Believable ones, in the order of ``holders``.
        problems : dict
            Peer id → why it has no part in them.
        """
        asked = list(dict.fromkeys(holders))[:MAX_ASKED]
        problems: dict[str, str] = {}
        tasks = {peer_id: asyncio.create_task(self._head(peer_id, subject, digest)) for peer_id in asked}
        try:
            await _wait_for_most(set(tasks.values()))
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        offers = []
        for peer_id, task in tasks.items():
            if task.cancelled():
                problems[peer_id] = "did not answer in time"
            elif (error := task.exception()) is None:
                offers.append(Offer(peer_id, task.result()))
            elif isinstance(error, RpcError | MessageError | StatementError | TransferError):
                problems[peer_id] = str(error)
            else:
                raise error
        return offers, problems

    async def fetch(
        self, subject: int, holders: Iterable[str], *, seconds: float, digest: bytes | None = None
    ) -> State:
        """Fetch the best state of ``subject`` that ``holders`` offer, or the one with ``digest``.

        Parameters
        ----------
        subject : int
            Block, or the embedding.
        holders : iterable of str
            Peer ids to ask, best guesses first.
        seconds : float
            Bound of the whole attempt.
        digest : bytes, optional
            A particular state instead of the best.

        Returns
        -------
        State
            Verified against its digest, finite; its certificate is checked.

        Raises
        ------
        TransferError
            When nobody offers one, all donors fail, or the time is up. A later call goes on with what arrived.
        """
        holders = list(dict.fromkeys(holders))
        name = subject_name(subject)
        download: Download | None = None
        try:
            async with asyncio.timeout(seconds):
                offers, problems = await self.offers(subject, holders, digest=digest)
                if not offers:
                    raise TransferError(f"no holder gives the state of {name}: {_told(problems)}")
                download = await self._in_thread(subject, self._resume, subject, self._choose(offers))
                await self._download(download, _by_promise(download.head, offers, holders))
                state = await self._in_thread(subject, download.finish)
        except TimeoutError:
            missing = f", {len(download.missing)} of {download.head.chunk_count} chunks missing" if download else ""
            told = f" ({_told(download.problems)})" if download and download.problems else ""
            raise TransferError(f"the state of {name} did not arrive in {seconds:g} s{missing}{told}") from None
        finally:
            if download is not None and not download.missing:
                self._unfinished.pop(subject, None)
        return state

    def forget(self, subject: int) -> None:
        """Drop what has arrived of ``subject``: this peer has no more use for it."""
        self._unfinished.pop(subject, None)

    async def _in_thread(self, subject: int, work: Callable[..., T], *arguments: Any) -> T:
        """What ``work`` gives, computed beside the loop once nothing else of this subject is.

        A thread cannot be ended: what an attempt has begun there goes on when its time is up. The next attempt waits
        for it, within its own time, for both use the same file.
        """
        if (earlier := self._working.get(subject)) is not None:
            await asyncio.wait([earlier])
        task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        self._working[subject] = task
        task.add_done_callback(partial(self._ended, subject))
        return await asyncio.shield(task)

    def _ended(self, subject: int, task: asyncio.Future[Any]) -> None:
        if self._working.get(subject) is task:
            del self._working[subject]
        if not task.cancelled():
            task.exception()  # an attempt that was given up asks no more

    def _resume(self, subject: int, head: StateHead) -> Download:
        known = self._unfinished.get(subject)
        if known is None or known.head.digest != head.digest:
            known = self._unfinished[subject] = Download(subject, head, file=self._files.get(subject))
        known.restart()
        return known

    async def _head(self, peer_id: str, subject: int, digest: bytes | None) -> StateHead:
        body = HeadRequest(subject, digest).to_body()
        reply = await self._call(peer_id, "state.head", body, timeout=HEAD_SECONDS)
        manifest = self._manifest
        head = StateHead.parse(reply.body, values=manifest.parameters(subject), momentum=manifest.momentum_of(subject))
        if digest is not None and head.digest != digest:
            raise TransferError("it offers another state than was asked for")
        # Checking a certificate verifies a signature per vote.
        await asyncio.to_thread(self._check, manifest, subject, head, self._latest_round())
        return head

    async def _download(self, download: Download, donors: Sequence[str]) -> None:
        """Pass over the donors until nothing is missing; the caller bounds the time."""
        patience = self._stall
        while download.missing:
            before = len(download.missing)
            usable = [donor for donor in donors if donor not in download.banned]
            if not usable:
                raise TransferError(
                    f"every holder of the state of {subject_name(download.subject)} failed: {_told(download.problems)}"
                )
            # With few donors, two chunks at a time from each keep the line full between question and answer.
            queue = deque(usable * 2 if 2 * len(usable) <= self._parallel else usable)
            await self._one_pass(download, queue, patience)
            if len(download.missing) == before:
                patience = min(2 * patience, MAX_PATIENCE)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _one_pass(self, download: Download, queue: deque[str], patience: float) -> None:
        workers = {
            asyncio.create_task(self._work(download, queue, patience)) for _ in range(min(self._parallel, len(queue)))
        }
        pending = workers
        try:
            # The pass ends with the last chunk, even while a duplicate of it is still on its way from a slower donor.
            while pending and download.missing:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for worker in done:
                    worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, download: Download, queue: deque[str], patience: float) -> None:
        """Pull chunks from one donor after another, as long as there are any of both."""
        while queue and download.missing:
            donor = queue.popleft()
            if donor in download.banned:
                continue
            while (index := await download.take()) is not None:
                if not await self._chunk(download, donor, index, patience):
                    break

    async def _chunk(self, download: Download, donor: str, index: int, patience: float) -> bool:
        """Fetch and verify one chunk; whether the donor is still good for another."""
        request = ChunkRequest(download.subject, download.head.digest, index).to_body()
        try:
            reply = await self._call(donor, "state.chunk", request, max_blob=CHUNK_BYTES, timeout=patience)
        except RpcError as error:
            download.give_back(index)
            if donor not in download.banned:  # else what it was banned for is the better reason
                download.problems[donor] = str(error)
            if error.code not in ("timeout", "unreachable", "busy"):
                download.banned.add(donor)  # it will not have the state in a minute either
            return False
        if download.put(index, reply.blob):
            return donor not in download.banned
        log.warning("%s sent a wrong chunk %d of the state of %s", donor, index, subject_name(download.subject))
        download.problems[donor] = f"sent a wrong chunk {index}"
        download.banned.add(donor)
        return False


def _by_promise(head: StateHead, offers: Sequence[Offer], holders: Sequence[str]) -> list[str]:
    """Donors in the order to try: who offers this state, who has moved on from it but may keep it, who said nothing."""
    same = [offer.peer_id for offer in offers if offer.head.digest == head.digest]
    other = [offer.peer_id for offer in offers if offer.head.digest != head.digest]
    return list(dict.fromkeys([*same, *other, *holders[:MAX_ASKED]]))


async def _wait_for_most(tasks: set[asyncio.Task[StateHead]]) -> None:
    """Wait until all are done, or a grace after the first one that brought something."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEAD_SECONDS + 0.5
    pending = tasks
    while pending and loop.time() < deadline:
        done, pending = await asyncio.wait(
            pending, timeout=max(0.0, deadline - loop.time()), return_when=asyncio.FIRST_COMPLETED
        )
        if any(task.exception() is None for task in done):
            deadline = min(deadline, loop.time() + HEAD_GRACE_SECONDS)


def _told(problems: Mapping[str, str]) -> str:
    shown = [f"{peer_id}: {reason}" for peer_id, reason in list(problems.items())[:4]]
    more = len(problems) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown) or "nobody was asked"
