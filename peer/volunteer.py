"""One volunteer's rounds: snapshot, meet, average, commit, correct the live weights, report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.identity import Identity
from blockswarm.peer.catchup import CatchUp
from blockswarm.peer.contributor import Contributor
from blockswarm.peer.desk import Desk
from blockswarm.peer.exchange import Caller, Exchange, off_loop
from blockswarm.peer.fit import FitWatch
from blockswarm.peer.forks import Forks
from blockswarm.peer.heads import claim_of
from blockswarm.peer.hosting import Hosting
from blockswarm.peer.live import LiveWeights, Settlement, Snapshot
from blockswarm.peer.report import round_event
from blockswarm.peer.roles import Roles
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.peer.view import SwarmView
from blockswarm.swarm.manifest import EMBEDDING, Manifest, subject_name
from blockswarm.swarm.policy.phases import RoundTimes, next_round_to_join

COMMIT_SETTLES_SECONDS = 0.2
"""Time after a round's close for the others to have its certificate, and the state to give."""

NEWS_SECONDS = 2.0
"""Time to tell replicas that were not in the round of the state it made."""

LOOKS_AFTER_SLEEP = 3
"""How often a peer that missed rounds tries to read the records before it goes on: its connections may be gone."""

LOOK_PAUSE = 0.5
"""Seconds between two of these tries."""

SNAPSHOT_SLACK = 0.05
"""Seconds by which a snapshot is asked for earlier than the step time alone would suggest."""


@dataclass(kw_only=True)
class Volunteer:
    """The parts of a running volunteer that its rounds need. ``peer.post`` builds them."""

    manifest: Manifest
    identity: Identity
    clock: Clock
    caller: Caller
    desk: Desk
    trainer: Trainer[Learner]
    live: LiveWeights
    catch_up: CatchUp
    forks: Forks
    view: SwarmView
    emit: Callable[[dict[str, Any]], None]
    committed: Callable[[], None]
    """Called after every commit: announce and save soon."""
    heldout: npt.NDArray[np.uint8]
    """Held-out windows, uint8 ``[n, context + 1]``."""
    hosting: Hosting | None = None
    """Brings in the updates of contributors."""
    reachable: bool = True

    roles: Roles = field(init=False)
    rounds_done: int = 0
    resting: bool = False
    """Training has ended here."""
    alone_from: int = 0
    """First round that this peer may commit alone: after a sleep it gives its connections a round to come back."""
    heldout_ce: float | None = None
    fit: FitWatch = field(default_factory=FitWatch)

    def __post_init__(self) -> None:
        others = partial(self.view.replicas, self.live.block)
        self.roles = Roles(self.manifest, self.trainer, others=lambda: bool(others()), emit=self.emit)

    async def run(
        self,
        rounds: int | None,
        *,
        on_training: Callable[[], None] = lambda: None,
        on_trained: Callable[[], None] = lambda: None,
        on_role: Callable[[bool], None] = lambda contributor: None,
        wish_to_move: Callable[[int], int | None] | None = None,
    ) -> int | None:
        """Take part in round after round.

        Parameters
        ----------
        rounds : int or None
            Return after so many; ``None`` goes on for ever.
        on_training : callable
            Called once this peer trains, from the newest state there is: others may count on it.
        on_trained : callable
            Called once the block's training has ended: from now on this peer serves, and follows what others commit.
        on_role : callable
            Called with whether this peer is a contributor, whenever that changes.
        wish_to_move : callable, optional
            Asked after every round, with its number, for a block that needs this peer more.

        Returns
        -------
        int or None
            The block to move to, or ``None`` when the rounds are done.
        """
        self.trainer.train(True)
        await self.trainer.first_step.wait()  # the learner's start takes seconds; a trainer that fails ends the peer
        await self.catch_up.refresh()  # others may have committed rounds meanwhile
        changed = await self.roles.first()
        self.live.contributes = self.roles.contributor
        (partial(on_role, True) if changed else on_training)()
        self.emit({"event": "training", "block": self.live.block})
        number = 0
        while rounds is None or self.rounds_done < rounds:
            asleep = 0 < number < self._joinable() - 1  # stopped, or the machine slept: the others have gone on
            if asleep:
                await self._look_around()
            number = max(number + 1, self._joinable())
            if asleep:
                self.alone_from = number + 1
            if self.trained:
                await self._sit_out(self.desk.times(number), on_trained)
            elif self.roles.contributor:
                await self._contribute()
                number = max(number, self._joinable() - 1)  # it was at work all the time
            else:
                await self.one_round(self.desk.times(number))
            self.rounds_done += 1
            if not self.resting and self.roles.judge():
                self.live.contributes = self.roles.contributor
                on_role(self.roles.contributor)
            target = wish_to_move(number) if wish_to_move else None
            if target is not None:
                return target
        return None

    async def _contribute(self) -> None:
        """One update, over as many rounds as it takes."""
        contributor = Contributor(
            manifest=self.manifest,
            identity=self.identity,
            clock=self.clock,
            caller=self.caller,
            trainer=self.trainer,
            live=self.live,
            catch_up=self.catch_up,
            members=self.view.replicas,
            emit=self.emit,
            upload_seconds=self.roles.upload_seconds,
        )
        await contributor.cycle()
        self.roles.upload_seconds = contributor.upload_seconds
        self.committed()

    @property
    def trained(self) -> bool:
        """Whether the block's training has ended: it has the certified samples that the recipe asks for."""
        end = self.manifest.recipe.train_samples
        return 0 < end <= self.live.head(self.live.block).samples

    async def _sit_out(self, times: RoundTimes, on_trained: Callable[[], None]) -> None:
        """A round after the end of training."""
        if not self.resting:
            self.resting = True
            self.trainer.train(False)
            head = self.live.head(self.live.block)
            self.emit({"event": "trained", "block": self.live.block, "round": head.round, "samples": head.samples})
            on_trained()
        await self.clock.sleep_until(times.close)

    def _joinable(self) -> int:
        """The first round that there is time to take part in."""
        settings = self.manifest.rounds
        return next_round_to_join(self.clock.now(), self.manifest.genesis_time, settings.seconds, settings.lengths)

    async def _look_around(self) -> None:
        """Learn who is there and what they have committed, before this peer could commit alone what nobody shares."""
        for _ in range(LOOKS_AFTER_SLEEP):
            if await self.view.refresh():
                break
            await asyncio.sleep(LOOK_PAUSE)
        await self.catch_up.refresh()

    async def one_round(self, times: RoundTimes) -> None:
        """Train until the round's training ends, then average and commit the block and the embedding side by side."""
        await self.clock.sleep_until(times.train_end - self.trainer.step_seconds - SNAPSHOT_SLACK)
        # A subject that is being fetched sits the round out, so that no snapshot is ever held against another parent.
        subjects = [subject for subject in self.live.subjects if not self.catch_up.busy(subject)]
        async with AsyncExitStack() as stack:
            for subject in subjects:
                await stack.enter_async_context(self.catch_up.locks[subject])
            snapshot = await self.live.snapshot()
            diverged = await self._diverged(subjects, snapshot)
            try:
                exchanges = [
                    await self._exchange(subject, times, snapshot) for subject in subjects if subject not in diverged
                ]
            except RpcRefused:  # this process was stopped, or the machine slept, for rounds
                self.emit({"event": "warning", "message": f"round {times.round} was over before this peer came to it"})
                return
            results = await asyncio.gather(*(self._take_part(exchange) for exchange in exchanges))
            heads = {result.subject: self.live.head(result.subject) for result in results}  # of this round, not later
        for exchange in exchanges:
            if exchange.book.members is not None:
                self.view.met(exchange.book.subject, exchange.book.members.members)
        self.heldout_ce = await self.trainer.run(lambda learner: learner.evaluate(self.heldout))
        for result in results:
            self.emit(round_event(result, snapshot, self.manifest, heads[result.subject], self.heldout_ce))
            if result.ahead:
                not_before = times.close + COMMIT_SETTLES_SECONDS
                self.catch_up.start(result.subject, result.ahead, not_before=not_before)
        if (note := self.fit.after(snapshot.loss, self.heldout_ce)) is not None:
            self.emit({"event": "warning", "message": note})
        await asyncio.gather(*(exchange.finish() for exchange in exchanges))

    async def _diverged(self, subjects: list[int], snapshot: Snapshot) -> list[int]:
        """Those whose live weights are not finite: they begin again from their certified state, without this round."""
        diverged = []
        for subject in subjects:
            values = snapshot.values[subject]
            if not await off_loop(values.nbytes, lambda values: bool(np.isfinite(values).all()), values):
                diverged.append(subject)
        if diverged:
            await self.live.restart(diverged)
            names = " and ".join(subject_name(subject) for subject in diverged)
            message = f"training diverged: the weights of {names} were not finite; going on from the swarm's own"
            self.emit({"event": "warning", "message": message})
        return diverged

    async def _exchange(self, subject: int, times: RoundTimes, snapshot: Snapshot) -> Exchange:
        parent = self.live.head(subject)
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
            look_again=partial(self.view.look_again, subject),
            standing=self.desk.standing(subject),
            guests=self.hosting.guests(subject, times.round) if self.hosting is not None else (),
            reachable=self.reachable,
            outweighed=self.forks.outweighed(subject),
            merge=await self.forks.merge(subject, times.round),
            note_merge=partial(self.forks.note_merge, subject),
            meter=self.desk.meter,
            may_be_alone=times.round >= self.alone_from,
            on_phase=lambda name: self._phase(subject, times.round, name),
        )

    def _phase(self, subject: int, number: int, name: str) -> None:
        if subject != EMBEDDING:
            self.emit({"event": "phase", "round": number, "subject": subject, "phase": name})

    async def _take_part(self, exchange: Exchange) -> RoundResult:
        result = await run_round(exchange)
        if self.hosting is not None:
            self.hosting.settle(result, exchange.guests)
        if result.subject == self.live.block and result.upload_seconds > 0:
            self.roles.upload_seconds = result.upload_seconds
        state = result.state or result.candidate
        if state is None:
            return result
        settlement = Settlement(state, exchange.parent, exchange.delta, result.sent, exchange.samples)
        if result.state is None:
            self.live.keep_candidate(settlement)
            return result
        await self.live.settle(settlement)
        await self.forks.committed(exchange.parent, state)
        self.committed()
        if result.members[0] == exchange.own_id:
            left_out = {*self.view.everyone(result.subject)} | exchange.book.heard
            news = {"subject": result.subject, **claim_of(state, proven=True)}
            exchange.broadcast(
                left_out - set(result.members), "round.news", news, until=self.clock.now() + NEWS_SECONDS
            )
        return result

    async def stop(self) -> None:
        """Drop transfers under way."""
        await self.catch_up.stop()
