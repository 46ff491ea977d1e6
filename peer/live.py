"""The live weights of one post: always the certified state plus pending work, whatever becomes of a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.peer.exchange import off_loop
from blockswarm.peer.ledger import Ledger, correction, kept_share
from blockswarm.peer.states import State, StateStore
from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.policy.contributing import STALEST, staleness_discount

Float32 = npt.NDArray[np.float32]

RESYNC_WARMUP_STEPS = 20
"""AdamW's averages are forgotten when foreign weights replace ours; the rate ramps up over this many steps."""

REBASE_ROUNDS = 2
"""Own pending work is carried onto a state at most this many rounds newer; older work would pull backwards."""


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
    busy: float
    """Seconds spent in steps since the snapshot before."""


@dataclass(frozen=True)
class Settlement:
    """What it takes to go over to a state that we voted for."""

    state: State
    parent: State
    delta: Float32
    sent: Float32 | None
    """What the state contains of our update; ``None`` when it was not accepted."""
    samples: int


class LiveWeights:
    """Snapshots and corrections of a learner's weights.

    Parameters
    ----------
    block : int
        The block that is trained; the embedding goes along.
    manifest : Manifest
        Says what becomes of late work.
    clock : Clock
        For rates.
    store : StateStore
        Certified states; holds one of the block and one of the embedding at least.
    trainer : Trainer
        The thread whose learner this is about.
    """

    def __init__(
        self, block: int, manifest: Manifest, clock: Clock, store: StateStore, trainer: Trainer[Learner]
    ) -> None:
        self.block = block
        self.subjects = (block, EMBEDDING)
        self.ledgers = {subject: Ledger() for subject in self.subjects}
        self.samples_per_second = 0.0
        self.contributes = False
        """A contributor's work is always late: it is carried as long as others would take it, discounted by age."""
        self._settings = manifest.rounds
        self._clock = clock
        self._store = store
        self._trainer = trainer
        self._candidates: dict[int, Settlement] = {}
        self._last_snapshot = (clock.now(), 0, 0.0)

    def head(self, subject: int) -> State:
        """The newest certified state of one of our subjects."""
        state = self._store.head(subject)
        if state is None:
            raise LookupError(f"no state of subject {subject}")
        return state

    async def snapshot(self) -> Snapshot:
        """Copy the live weights between two steps, and give out the next local steps."""

        def take(learner: Learner) -> tuple[Float32, Float32, int, float, float | None]:
            theta, embedding = learner.read()
            self._trainer.renew_steps()
            return theta, embedding, self._trainer.samples, self._trainer.busy_seconds, self._trainer.take_loss()

        theta, embedding, total, busy, loss = await self._trainer.run(take)
        now = self._clock.now()
        before, before_samples, before_busy = self._last_snapshot
        self._last_snapshot = (now, total, busy)
        seconds, trained = max(1e-6, now - before), total - before_samples
        self.samples_per_second = trained / seconds
        return Snapshot(
            values={self.block: theta, EMBEDDING: embedding},
            samples={subject: self.ledgers[subject].snapshot(total) for subject in self.subjects},
            loss=loss,
            seconds=seconds,
            trained=trained,
            busy=busy - before_busy,
        )

    async def settle(self, settlement: Settlement) -> None:
        """Make a certified state that we helped to make ours, and bring the live weights onto it."""
        state = settlement.state
        self._candidates.pop(state.subject, None)
        kept = kept_share(settlement.sent is not None, self._settings.late, self._settings.carry_discount)
        change = await off_loop(
            4 * state.values.size,
            correction,
            settlement.parent.values,
            state.values,
            settlement.delta,
            settlement.sent,
            kept,
        )
        self._store.commit(state)
        await self._trainer.run(lambda learner: self._add(learner, state, change))
        self.ledgers[state.subject].settle(settlement.samples, kept)

    def keep_candidate(self, settlement: Settlement) -> None:
        """Remember a state we voted for but saw no certificate of, until contact with who did (docs/protocol.md §6)."""
        self._candidates[settlement.state.subject] = settlement

    async def adopt(self, state: State, *, fork: bool = False) -> bool:
        """Go over to a state that others certified; whether pending work was carried along.

        Work on a state at most `REBASE_ROUNDS` older is carried at the manifest's discount, else the weights are
        replaced. A contributor's is carried for `STALEST` rounds, at the discount of its age. At a ``fork`` they are
        replaced: what encoding lost of work on another line is no residual of this one.
        """
        subject, old = state.subject, self.head(state.subject)
        candidate = self._candidates.pop(subject, None)
        if candidate is not None and candidate.state.digest == state.digest:
            await self.settle(dataclasses.replace(candidate, state=state))
            return True
        age, discount = state.round - old.round, self._settings.carry_discount
        if self.contributes and age > REBASE_ROUNDS:
            discount = staleness_discount(age, discount)
        kept = kept_share(False, self._settings.late, discount)
        carried = not fork and 0 < age <= (STALEST if self.contributes else REBASE_ROUNDS)
        self._store.commit(state)

        def rebase(learner: Learner) -> None:
            theta, embedding = learner.read()
            delta = (embedding if subject == EMBEDDING else theta) - old.values
            self._add(learner, state, correction(old.values, state.values, delta, None, kept))

        def replace(learner: Learner) -> None:
            learner.load(*(None, state.values) if subject == EMBEDDING else (state.values, None))
            if subject != EMBEDDING:
                learner.reset_optimizer(RESYNC_WARMUP_STEPS)
                learner.set_certified(state.samples)

        ledger = self.ledgers[subject]
        if carried:
            await self._trainer.run(rebase)
            ledger.settle(ledger.snapshot(self._trainer.samples), kept)
        else:
            await self._trainer.run(replace)
            ledger.restart(self._trainer.samples)
        return carried

    async def hand_over(self, subject: int, contributed: Float32, samples: int) -> None:
        """What others have brought into a round is theirs: it leaves the live weights, and is not pending any more.

        The state that has it comes by `adopt`. ``contributed`` is the update as it was decoded.
        """

        def take_out(learner: Learner) -> None:
            learner.add(*(None, -contributed) if subject == EMBEDDING else (-contributed, None))

        await self._trainer.run(take_out)
        self.ledgers[subject].settle(samples, 0.0)

    async def restart(self, subjects: Sequence[int]) -> None:
        """Begin again from the certified states of ``subjects``, whose live weights are not finite any more.

        Such weights would never mend: every update of theirs is refused, and every commit is added to them.
        """
        states = {subject: self.head(subject).values for subject in subjects}

        def replace(learner: Learner) -> None:
            learner.load(states.get(self.block), states.get(EMBEDDING))
            learner.reset_optimizer(RESYNC_WARMUP_STEPS)

        await self._trainer.run(replace)
        for subject in subjects:
            self._candidates.pop(subject, None)
            self.ledgers[subject].restart(self._trainer.samples)

    @staticmethod
    def _add(learner: Learner, state: State, change: Float32) -> None:
        if state.subject == EMBEDDING:
            learner.add(None, change)
        else:
            learner.add(change, None)
            learner.set_certified(state.samples)
