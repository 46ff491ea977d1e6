"""One session: a set of pinned states, and holders that are exchanged under it without the answers changing.

For every question the session asks the best holder of the pinned state, a rival when that one is slow, the next when it
fails. Only when a pinned state is lost everywhere does it take another, and says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from blockswarm.dht.errors import RpcError
from blockswarm.naming import option
from blockswarm.swarm.core import Core
from blockswarm.swarm.errors import ClientError, MessageError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.link import Reply, short, words
from blockswarm.swarm.manifest import COUNTS
from blockswarm.swarm.pins import Pin, exchange
from blockswarm.swarm.race import Race, race
from blockswarm.swarm.remembered import Piece, Remembered
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.session_messages import SessionRequest
from blockswarm.swarm.subjects import block_word, subject_name

T = TypeVar("T")

REQUEST_TIMEOUT = 40.0
"""Seconds one holder gets for one request (it gives itself 30); long before, a rival is asked."""

RECOVERIES = 3
"""Times a block without an answering holder is looked up again before the session gives up."""

RECOVERY_PAUSE = 0.3
"""Seconds before the second look-up, doubled for each further one."""

ABSENT_SECONDS = (2.0, 60.0)
"""Best effort: first and longest time a block is left out before it is asked again."""

BUSY_PAUSE = 2.0
"""Longest wait that a busy holder can impose at once."""

MAX_BUSY = 20
"""Times a session comes back to holders that are all busy."""


@dataclass(frozen=True)
class Question(Generic[T]):
    """A request any holder of the pinned state can answer."""

    block: int
    method: str
    body: Callable[[Pin], tuple[Mapping[str, Any], bytes]]
    """Makes the body and the blob for the states pinned at that moment."""
    check: Callable[[Reply], T]
    """Turns an answer into a value or raises ``UntrustedAnswerError``."""
    max_blob: int
    work: int
    """Positions to be computed."""
    piece: Piece | None = None
    """The same question to a holder that keeps what it was told in this session."""


class Session:
    """Asks questions of the holders of one set of pinned states.

    Parameters
    ----------
    core : Core
        The swarm.
    pin : Pin
        States to begin with.
    fixed : bool
        Whether the user chose the pin; then it is never exchanged.
    patience : float, optional
        Best effort: seconds a block gets for one answer before the others go on without it. None: never without.
    report : CallReport
        Filled in along the way.
    """

    def __init__(self, core: Core, pin: Pin, *, fixed: bool, patience: float | None, report: CallReport) -> None:
        self.core = core
        self.pin = pin
        self.fixed = fixed
        self.patience = patience
        self.report = report
        self.opened = trio.current_time()
        self.byte = 0
        """Absolute position in the text the session is at; only for reports."""
        self.embedding_epoch = 0
        """Counts exchanges of the embedding: answers from before and after do not mix."""
        self.remembered = Remembered()
        """What its holders know of the text."""
        self.waits = 0
        """Times holders were waited for, one after the other."""
        self.chains_from = -math.inf
        """When a sweep may again be tried in one traversal; see ``blockswarm.swarm.chain``."""
        self.unanswered: set[int] = set()
        """Blocks being waited for, for the message of a deadline."""
        self._epoch = 0
        self._using: dict[int, str] = {}
        self._following: Counter[str] = Counter()  # by holder: requests under way of a text that goes on
        self._refused: set[tuple[str, bytes, bytes]] = set()
        self._left: set[tuple[int, str]] = set()
        self._recovering: dict[int, Any] = {}
        self._absent: dict[int, tuple[float, float]] = {}  # block → (asked again at, how long it was left out)
        core.sessions.add(self)

    @property
    def may_ask_ahead(self) -> bool:
        """Whether a question that may be in vain keeps none waiting that this client's other texts need."""
        return all(map(self.core.link.idle, self._using.values()))

    async def ask(self, question: Question[T]) -> T:
        """The checked answer to ``question`` from whichever holder gives it.

        Raises
        ------
        NoHolderError
            When nobody serves the block (any more).
        UntrustedAnswerError
            When all its holders gave answers that break the rules.
        """
        block = question.block
        self.unanswered.add(block)
        self.core.keep_fresh()
        recoveries = busy = 0
        while True:
            epoch, pin = self._epoch, self.pin
            peers = self.candidates(block)
            outcome = await self._race(question, pin, peers)
            if outcome.won is not None:
                self.unanswered.discard(block)
                return outcome.won.result
            waits = [_busy_seconds(error) for error in outcome.failed.values()]
            if waits and None not in waits and busy < MAX_BUSY:
                busy += 1
                await trio.sleep(min(BUSY_PAUSE, max(0.05, min(wait for wait in waits if wait is not None))))
                continue
            if recoveries >= (RECOVERIES if self.patience is None else 1):
                raise self._nobody(block, outcome.failed)
            await self._recover(block, epoch, recoveries)
            recoveries += 1

    async def ask_or_skip(self, question: Question[T]) -> T | None:
        """Like :meth:`ask`; in a best-effort session None for a block that does not answer in time."""
        if self.patience is None:
            return await self.ask(question)
        block = question.block
        again, pause = self._absent.get(block, (0.0, 0.0))
        if trio.current_time() < again:
            return None
        why = f"no answer in {self.patience:g} s"
        try:
            with trio.move_on_after(self.patience) as scope:
                answer = await self.ask(question)
            if not scope.cancelled_caught:
                if self._absent.pop(block, None):
                    self.core.notify("returned", f"{subject_name(block)} answers again", block=block, byte=self.byte)
                return answer
        except (NoHolderError, UntrustedAnswerError) as error:
            why = "nobody serves it" if isinstance(error, NoHolderError) else str(error)
        first, longest = ABSENT_SECONDS
        pause = min(longest, 2 * pause) if pause else first
        self._absent[block] = (trio.current_time() + pause, pause)
        self.unanswered.discard(block)
        if block not in self.report.missing:
            self.report.missing = sorted({*self.report.missing, block})
            self.core.notify("missing", f"going on without {subject_name(block)}: {why}", block=block, byte=self.byte)
        return None

    def candidates(self, block: int) -> list[str]:
        """Live holders that can serve the pinned states of ``block``."""
        if block == COUNTS:  # the manifest names them, not the pin
            digest = self.core.manifest.genesis_digest(COUNTS)
            offers = self.core.live_offers(COUNTS)
            return [offer.peer_id for offer in offers if any(state.digest == digest for state in offer.states)]
        state = self.pin.blocks.get(block)
        if state is None:
            return []
        if self.fixed:
            # Holders may have more than they list (anyone can compute genesis): ask, and remember who had not.
            pair = state.digest, self.pin.embedding.digest
            live = [offer.peer_id for offer in self.core.live_offers(block)]
            return [peer for peer in live if (peer, *pair) not in self._refused]
        return [
            offer.peer_id
            for offer in self.core.live_offers(block)
            if offer.has(state.digest, self.pin.embedding.digest)
        ]

    def first(self, block: int) -> str | None:
        """The holder that a question of ``block`` would go to first; None if there is none."""
        order = self.core.router.order(
            self.candidates(block), work=1, now=trio.current_time(), prefer=self._using.get(block)
        )
        return order[0] if order else None

    async def _race(self, question: Question[T], pin: Pin, peers: list[str]) -> Race[T]:
        core, block = self.core, question.block
        prefer = self._using.get(block)
        # A text stays where it is known: a request that goes on from another one follows it.
        own = self._following[prefer] if prefer is not None and question.piece is not None else 0
        order = core.router.order(peers, work=question.work, now=trio.current_time(), prefer=prefer, own=own)
        if order and question.piece is not None:
            self._using.setdefault(block, order[0])  # the next one follows before this one is answered

        running = 0

        async def attempt(peer: str) -> T:
            nonlocal running
            began = trio.current_time()
            if running:
                core.stats.hedges += 1
                core.router.hedged()
            running += 1
            core.stats.requests += 1
            core.router.started(peer)
            self._following[peer] += question.piece is not None
            try:
                result = question.check(await self._put(question, pin, peer))
            except (RpcError, UntrustedAnswerError) as error:
                self.failed(block, peer, pin, error)
                raise
            finally:
                running -= 1
                core.router.ended(peer)
                self._following[peer] -= question.piece is not None
            core.router.answered(peer, work=question.work, seconds=trio.current_time() - began)
            return result

        outcome = await race(order, attempt, lambda peer: core.router.patience(peer, question.work))
        for peer, seconds in outcome.overtaken.items():
            core.router.overtaken(peer, work=question.work, seconds=seconds)
        if outcome.won is not None:
            core.stats.answers += 1
            self._taken_over(block, outcome.won.peer, outcome)
        return outcome

    async def _put(self, question: Question[T], pin: Pin, peer: str) -> Reply:
        """The answer of one holder: in a session, or from one that has none by whole windows."""
        call = partial(
            self.core.link.call,
            peer,
            run=self.core.manifest.digest,
            max_blob=question.max_blob,
            timeout=REQUEST_TIMEOUT,
        )

        async def in_session(request: SessionRequest) -> Reply:
            return await call(f"session.{question.method}", request.to_body())

        if question.piece is not None and peer not in self.core.sessionless:
            try:
                return await self.remembered.ask(question.piece, peer, question.block, pin, in_session)
            except RpcError as error:
                if error.code == "unknown-method":
                    self.core.sessionless.add(peer)
                elif error.code != "unknown-session":
                    raise
        body, blob = question.body(pin)
        return await call(question.method, body, blob=blob)

    def failed(self, block: int, peer: str, pin: Pin, error: RpcError | UntrustedAnswerError) -> None:
        """Take note of a holder that did not answer well."""
        core, now = self.core, trio.current_time()
        core.stats.failures += 1
        if isinstance(error, UntrustedAnswerError):
            core.stats.refused_answers += 1
            core.router.failed(peer, now=now, kind="untrusted")
            text = f"{short(peer)} ({subject_name(block)}): {error}"
            core.notify("refused", text, block=block, peer_id=peer, byte=self.byte)
        elif error.code == "unknown-state":
            if (state := pin.blocks.get(block)) is not None:
                self._refused.add((peer, state.digest, pin.embedding.digest))
            try:
                core.take_offer(peer, error.detail)  # it has moved on; that is no fault
            except MessageError:
                core.offers.pop(peer, None)
        elif error.code == "busy":
            core.router.failed(peer, now=now, kind="busy", retry_after=_busy_seconds(error))
        else:
            if error.code in ("wrong-run", "not-serving"):
                core.offers.pop(peer, None)
            core.router.failed(peer, now=now, kind="error")

    def _taken_over(self, block: int, winner: str, outcome: Race[T]) -> None:
        """Keep account of who serves the block, and report those who had to be replaced."""
        before, self._using[block] = self._using.get(block, winner), winner
        self._left.discard((block, winner))
        # A survey between two questions may have found that the one in use is gone: then nobody asked it in vain.
        gone = before != winner and before not in self.core.offers
        reasons = {before: "no longer among the holders"} if gone else {}
        reasons |= {peer: f"silent for {seconds:.2f} s" for peer, seconds in outcome.overtaken.items()}
        reasons |= {peer: words(error) for peer, error in outcome.failed.items() if _busy_seconds(error) is None}
        for peer, why in reasons.items():
            if (block, peer) in self._left:
                continue
            self._left.add((block, peer))
            self.report.replaced += 1
            self.core.stats.replaced += 1
            self.core.notify(
                "replaced",
                f"{subject_name(block)}: {short(winner)} took over from {short(peer)} ({why}) at byte {self.byte}",
                block=block,
                peer_id=peer,
                byte=self.byte,
            )

    async def _recover(self, block: int, epoch: int, earlier: int) -> None:
        """Look for holders of ``block`` again; exchange the pin if its state is lost everywhere."""
        async with self._recovering.setdefault(block, trio.Lock()):
            if self._epoch != epoch:
                return  # somebody else has done it meanwhile
            if earlier:
                await trio.sleep(RECOVERY_PAUSE * 2 ** (earlier - 1))
            await self.core.survey(fresh=True, blocks=[block])
            if block != COUNTS and not self.candidates(block) and not self.fixed:
                self._repin(block)

    def _repin(self, block: int) -> None:
        before = self.pin
        exchanged = exchange(before, self.core.live_offers(), block, len(self.core.blocks))
        if exchanged is None:
            return
        self.pin = exchanged
        # What holders keep of a sweep came from the states of the blocks before them too.
        self.remembered = Remembered()
        if exchanged.embedding != before.embedding:
            self.embedding_epoch += 1
        self._epoch += 1
        if block not in before.blocks:
            return  # it had no holder when the session began: nothing was exchanged
        self.report.repinned += 1
        self.core.stats.repinned += 1
        lost, taken = before.blocks[block], self.pin.blocks[block]
        also = self.pin.embedding != before.embedding
        self.core.notify(
            "re-pinned",
            f"block {block}: the state of round {lost.round} is lost everywhere; from byte {self.byte} on round "
            f"{taken.round} answers{', with another embedding' if also else ''}",
            block=block,
            byte=self.byte,
        )

    def _nobody(self, block: int, failed: Mapping[str, Exception]) -> ClientError:
        why = {record.peer_id: self.core.trouble.get(record.peer_id, "") for record in self.core.book.holders(block)}
        why |= {peer: words(error) for peer, error in failed.items()}
        reasons = "; ".join(f"{short(peer)}: {text}" for peer, text in why.items() if text)
        if failed and all(isinstance(error, UntrustedAnswerError) for error in failed.values()):
            return UntrustedAnswerError(f"{subject_name(block)}: every holder's answer breaks the rules ({reasons})")
        state = self.pin.blocks.get(block)
        if self.fixed and state is not None:
            return NoHolderError(
                block,
                f"block {block}: no live holder serves the pinned state {state.digest.hex()[:12]}… of round "
                f"{state.round} ({reasons or 'none has it'}): holders keep their last few states; take a newer pin",
            )
        found = f" ({reasons})" if reasons else ""
        return NoHolderError(
            block,
            f"no live holder of {subject_name(block)}{found}: wait for a volunteer, or serve it with `blockswarm join "
            f"--block {block_word(block)}`{self._without_it(block)}",
        )

    def _without_it(self, block: int) -> str:
        """What the caller could ask for instead of an answer with every block."""
        if block == COUNTS and self.patience is None:
            return f"; give their file with {option('counts', 'FILE')}, or {option('best_effort', True)}"
        if self.report.readout == "sweep":
            return f"; {option('readout', 'parallel')} needs no single block"
        if self.report.call == "generate" and self.patience is None:
            return f"; give {option('best_effort', True)} to go on without it"
        return ""


def _busy_seconds(error: Exception) -> float | None:
    """Seconds a busy holder asks to be left alone; None when it is something else."""
    if not isinstance(error, RpcError) or error.code != "busy":
        return None
    after = error.detail.get("retry_after")
    return float(after) if isinstance(after, int | float) and 0 <= after < 3600 else 0.5
