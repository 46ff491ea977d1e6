"""One volunteer's rounds: snapshot, meet, average, commit, correct the live weights, report."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.dht.identity import Identity
from blockswarm.peer.desk import Desk
from blockswarm.peer.exchange import Caller, Exchange, Head, off_loop
from blockswarm.peer.ledger import Ledger, correction, kept_share
from blockswarm.peer.report import round_event
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.trainer import Trainer
from blockswarm.peer.view import SwarmView
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.policy.phases import RoundTimes, next_round_to_join

if TYPE_CHECKING:
    from blockswarm.model.learner import BlockLearner

log = logging.getLogger(__name__)
Float32 = npt.NDArray[np.float32]

RESYNC_WARMUP_STEPS = 20
"""AdamW's averages are forgotten when foreign weights replace ours; the rate ramps up over this many steps."""

REBASE_ROUNDS = 2
"""Own pending work is carried onto a state at most this many rounds newer; older work would pull backwards."""

COMMIT_SETTLES_SECONDS = 0.2
"""Time after a round's close for the others to have its certificate, and the state to give."""

SNAPSHOT_SLACK = 0.05
"""Seconds by which a snapshot is asked for earlier than the step time alone would suggest."""


@dataclass(frozen=True)
class Snapshot:
    """Live weights at the end of training, and the work behind them."""

    values: dict[int, Float32]
    samples: dict[int, int]
    loss: float | None
    seconds: float
    """Clock time since the snapshot before."""
    trained: int
    """Samples trained since the snapshot before."""


@dataclass(frozen=True)
class Settlement:
    """What it takes to go over to a state that contains an update of ours."""

    state: State
    parent: State
    delta: Float32
    sent: Float32 | None
    samples: int

    @classmethod
    def of(cls, exchange: Exchange, result: RoundResult, state: State) -> Settlement:
        """The settlement of a round that made ``state``."""
        return cls(state, exchange.parent, exchange.delta, result.sent, exchange.samples)


@dataclass(kw_only=True)
class Volunteer:
    """The parts of a running volunteer that its rounds need. ``peer.Peer`` builds and stops them."""

    block: int
    manifest: Manifest
    identity: Identity
    clock: Clock
    caller: Caller
    desk: Desk
    store: StateStore
    trainer: Trainer
    view: SwarmView
    fetch: Callable[[int, list[Head]], Any]
    """``await fetch(subject, heads)`` gives the newest verified state others hold, or raises."""
    emit: Callable[[dict[str, Any]], None]
    committed: Callable[[], None]
    """Called after every commit: announce and save soon."""
    heldout: npt.NDArray[np.uint8]
    """Held-out windows, uint8 ``[n, context + 1]``."""
    reachable: bool = True

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    rounds_done: int = 0
    heldout_ce: float | None = None
    samples_per_second: float = 0.0
    next_deadline: float = 0.0
    _catching_up: dict[int, asyncio.Task[State]] = field(default_factory=dict)
    _candidates: dict[int, Settlement] = field(default_factory=dict)
    """States we voted for and saw no certificate of; kept until contact with those who did (PROTOCOL R4)."""
    _last_snapshot: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self.ledgers = {subject: Ledger() for subject in self.subjects}
        self._last_snapshot = (self.clock.now(), 0)

    @property
    def subjects(self) -> tuple[int, int]:
        """What this volunteer averages: its block, and the shared embedding."""
        return (self.block, EMBEDDING)

    def head(self, subject: int) -> State:
        """The newest certified state of one of our subjects."""
        state = self.store.head(subject)
        if state is None:
            raise LookupError(f"no state of subject {subject}")
        return state

    # -- the loop --------------------------------------------------------------------------------------------------

    async def run(self, rounds: int | None, wish_to_move: Callable[[int], int | None] | None = None) -> int | None:
        """Take part in round after round.

        Parameters
        ----------
        rounds : int or None
            Return after so many; ``None`` goes on for ever.
        wish_to_move : callable, optional
            Asked after every round, with its number, for a block that needs this peer more.

        Returns
        -------
        int or None
            The block to move to, or ``None`` when the rounds are done.
        """
        self.trainer.train(True)
        await self.trainer.first_step.wait()  # the learner's start takes seconds; a trainer that fails ends the peer
        self.emit({"event": "training", "block": self.block})
        settings, number = self.manifest.rounds, 0
        while rounds is None or self.rounds_done < rounds:
            joinable = next_round_to_join(
                self.clock.now(), self.manifest.genesis_time, settings.seconds, settings.lengths
            )
            number = max(number + 1, joinable)
            await self.one_round(self.desk.times(number))
            self.rounds_done += 1
            target = wish_to_move(number) if wish_to_move else None
            if target is not None:
                return target
        return None

    async def one_round(self, times: RoundTimes) -> None:
        """Train until the round's training ends, then average and commit the block and the embedding side by side."""
        self.next_deadline = times.train_end
        await self.clock.sleep_until(times.train_end - self.trainer.step_seconds - SNAPSHOT_SLACK)
        await self._adopt_arrived()
        snapshot = await self._snapshot()
        exchanges = [
            self._exchange(subject, times, snapshot) for subject in self.subjects if subject not in self._catching_up
        ]
        results = await asyncio.gather(*(self._take_part(exchange) for exchange in exchanges))
        self.heldout_ce = await self.trainer.run(lambda learner: learner.evaluate(self.heldout))
        for result in results:
            self.emit(round_event(result, snapshot, self.manifest, self.head(result.subject), self.heldout_ce))
            if result.ahead:
                self._catch_up(result.subject, times, result.ahead)
        await asyncio.gather(*(exchange.finish() for exchange in exchanges))

    async def _snapshot(self) -> Snapshot:
        def take(learner: BlockLearner) -> tuple[Float32, Float32, int, float | None]:
            theta, embedding = learner.read()
            self.trainer.renew_steps()
            return theta, embedding, self.trainer.samples, self.trainer.take_loss()

        theta, embedding, total, loss = await self.trainer.run(take)
        now = self.clock.now()
        before, before_samples = self._last_snapshot
        self._last_snapshot = (now, total)
        seconds, trained = max(1e-6, now - before), total - before_samples
        self.samples_per_second = trained / seconds
        return Snapshot(
            values={self.block: theta, EMBEDDING: embedding},
            samples={subject: self.ledgers[subject].snapshot(total) for subject in self.subjects},
            loss=loss,
            seconds=seconds,
            trained=trained,
        )

    def _exchange(self, subject: int, times: RoundTimes, snapshot: Snapshot) -> Exchange:
        parent = self.head(subject)
        return Exchange(
            caller=self.caller,
            identity=self.identity,
            manifest=self.manifest,
            clock=self.clock,
            book=self.desk.book(subject, times.round),
            times=times,
            parent=parent,
            delta=snapshot.values[subject] - parent.values,
            samples=snapshot.samples[subject],
            replicas=self.view.replicas(subject),
            reachable=self.reachable,
            on_phase=lambda name: self._phase(subject, times.round, name),
        )

    def _phase(self, subject: int, number: int, name: str) -> None:
        if subject != EMBEDDING:
            self.emit({"event": "phase", "round": number, "subject": subject, "phase": name})

    async def _take_part(self, exchange: Exchange) -> RoundResult:
        result = await run_round(exchange)
        subject = result.subject
        if result.state is not None:
            self._candidates.pop(subject, None)
            await self._settle(Settlement.of(exchange, result, result.state))
        elif result.candidate is not None:
            self._candidates[subject] = Settlement.of(exchange, result, result.candidate)
        return result

    # -- after a commit --------------------------------------------------------------------------------------------

    async def _settle(self, settlement: Settlement) -> None:
        """Make a certified state that we helped to make ours, and bring the live weights onto it."""
        state, settings = settlement.state, self.manifest.rounds
        kept = kept_share(settlement.sent is not None, settings.late, settings.carry_discount)
        change = await off_loop(
            4 * state.values.size,
            correction,
            settlement.parent.values,
            state.values,
            settlement.delta,
            settlement.sent,
            kept,
        )
        self.store.commit(state)
        await self._add(state.subject, change, state.samples)
        self.ledgers[state.subject].settle(settlement.samples, kept)
        self.committed()

    async def _add(self, subject: int, change: Float32, certified: int) -> None:
        def add(learner: BlockLearner) -> None:
            if subject == EMBEDDING:
                learner.add(None, change)
            else:
                learner.add(change, None)
                learner.set_certified(certified)

        await self.trainer.run(add)

    # -- catching up -----------------------------------------------------------------------------------------------

    def _catch_up(self, subject: int, times: RoundTimes, ahead: list[Head]) -> None:
        """Fetch a heavier state in the background; it is adopted before the next round in which it has arrived."""

        async def fetch() -> State:
            # What others hold during a round is outdated at its close: with it we would stay one round behind for ever.
            await self.clock.sleep_until(times.close + COMMIT_SETTLES_SECONDS)
            state: State = await self.fetch(subject, ahead)
            return state

        if subject not in self._catching_up:
            self._catching_up[subject] = asyncio.create_task(fetch(), name=f"catch up on subject {subject}")

    async def _adopt_arrived(self) -> None:
        for subject, task in list(self._catching_up.items()):
            if not task.done():
                continue
            del self._catching_up[subject]
            try:
                state = task.result()
            except Exception as error:
                self.emit({"event": "warning", "message": f"catching up failed: {error}"})
                continue
            await self.adopt(state)

    async def adopt(self, state: State) -> None:
        """Go over to a state that others certified: carry what is pending if it is recent, else start afresh."""
        subject, old = state.subject, self.head(state.subject)
        candidate = self._candidates.pop(subject, None)
        if candidate is not None and candidate.state.digest == state.digest:
            await self._settle(dataclasses.replace(candidate, state=state))
            self._tell_adopted(state, carried=True)
            return
        kept = kept_share(False, self.manifest.rounds.late, self.manifest.rounds.carry_discount)
        recent = 0 < state.round - old.round <= REBASE_ROUNDS
        self.store.commit(state)

        def rebase(learner: BlockLearner) -> None:
            theta, embedding = learner.read()
            delta = (embedding if subject == EMBEDDING else theta) - old.values
            change = correction(old.values, state.values, delta, None, kept)
            learner.add(*(None, change) if subject == EMBEDDING else (change, None))

        def replace(learner: BlockLearner) -> None:
            learner.load(*(None, state.values) if subject == EMBEDDING else (state.values, None))
            if subject != EMBEDDING:
                learner.reset_optimizer(RESYNC_WARMUP_STEPS)
                learner.set_certified(state.samples)

        ledger = self.ledgers[subject]
        if recent:
            await self.trainer.run(rebase)
            ledger.settle(ledger.snapshot(self.trainer.samples), kept)
        else:
            await self.trainer.run(replace)
            ledger.restart(self.trainer.samples)
        self._tell_adopted(state, carried=recent)
        self.committed()

    def _tell_adopted(self, state: State, *, carried: bool) -> None:
        self.emit(
            {
                "event": "state",
                "subject": state.subject,
                "round": state.round,
                "digest": state.digest.hex(),
                "samples": state.samples,
                "carried": carried,
            }
        )

    async def stop(self) -> None:
        """Drop transfers under way."""
        for task in self._catching_up.values():
            task.cancel()
        if self._catching_up:
            await asyncio.wait(self._catching_up.values(), timeout=1.0)
        self._catching_up.clear()
