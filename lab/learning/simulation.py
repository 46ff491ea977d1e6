"""One simulated training: virtual workers in one process, each of whose updates is really trained.

Time is simulated: steps and uploads take what the recipe and the regime say, not what they take here. All policies run
for the same simulated time. A round lasts until its deadline, or, where it waits, until the last update is there; then
as many rounds are run as fit, to the nearest whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from blockswarm.lab.learning.arrivals import Arrivals, Trip
from blockswarm.lab.learning.policy import Policy, snapshot_at
from blockswarm.lab.learning.regime import Pace, Regime, workers_of
from blockswarm.lab.learning.subject import Rules, Subject, Worker
from blockswarm.lab.plan import Plan
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Trained
from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.corpus import batches
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.learner import BlockLearner
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.manifest import Manifest, create_manifest

LOOKS = 6
"""Moments, evenly over the simulated time, at which cross-entropy is looked at."""

ROUND_SECONDS = 10.0
"""Of the manifest that says how updates are averaged; nothing depends on it here."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is simulated: a row of the table for one seed."""

    regime: Regime
    policy: Policy
    pace: Pace
    model: ModelConfig
    seed: int


@dataclass
class Outcome:
    """What came of it."""

    wall_s: float = 0.0
    """Simulated seconds."""
    rounds: int = 0
    asked: int = 0
    """Updates trained: one for each worker and round."""
    accepted: int = 0
    reachable: int = 0
    """Updates that would have been in time after a single step."""
    reached: int = 0
    """Those of them that were accepted."""
    steps: int = 0
    """Local steps of all workers."""
    bytes_sent: int = 0
    """Simulated bytes of the updates sent, lost ones too."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Simulated seconds and cross-entropy then, nats per byte."""
    states: tuple[Plan, Trained] | None = None
    """The final blocks and embedding."""


Look = Callable[[Plan, Trained], float]


def payload_bytes(case: Case) -> int:
    """Bytes of one update on the simulated wire."""
    values = case.pace.payload_values
    sizes = [block_layout(case.model).size, embedding_layout(case.model).size] if values is None else [values]
    return sum(encoded_size(size, case.policy.compression) for size in sizes)


def simulate(
    case: Case, text: LabText, *, look: Look | None = None, progress: Callable[[float], None] = lambda _: None
) -> Outcome:
    """Train through all rounds of a case.

    Parameters
    ----------
    case : Case
        What.
    text : LabText
        Training bytes.
    look : callable, optional
        Gives the cross-entropy of the model as it stands; asked `LOOKS` times.
    progress : callable, optional
        Gets the share of the simulated time that is done, after each round.

    Returns
    -------
    Outcome
        The same for the same case, text and machine.

    Raises
    ------
    ScenarioError
        If a block has no worker.
    """
    crowd = _Crowd(case, text)
    outcome = crowd.outcome
    total = case.pace.rounds * case.regime.deadline_seconds
    seen = 0
    # A round of which less than half lies within the time is not begun: the wall is right to half a round.
    while outcome.wall_s + (length := crowd.begin()) / 2 <= total:
        crowd.finish(length)
        done = min(1.0, outcome.wall_s / total)
        if look is not None and math.floor(done * LOOKS + 1e-9) > seen:
            seen = math.floor(done * LOOKS + 1e-9)
            outcome.curve.append((outcome.wall_s, look(*crowd.read())))
        progress(done)
    outcome.states = crowd.read()
    return outcome


class _Crowd:
    """The workers, the subjects they train, and the clock."""

    def __init__(self, case: Case, text: LabText) -> None:
        self._case, self.outcome = case, Outcome()
        self._manifest = _manifest(case)
        blocks = case.model.blocks
        counts = workers_of(case.regime, blocks=blocks, replicas=case.pace.replicas)
        places = [(block, replica) for block in range(blocks) for replica in range(counts[block])]
        self._payload = payload_bytes(case)
        self._arrivals = Arrivals(
            case.regime,
            len(places),
            step_seconds=case.pace.step_seconds,
            payload_bytes=self._payload,
            seed=case.seed,
        )
        # A newcomer takes the download of the state for a first upload: that is all it knows of its line.
        self._workers = [
            Worker(f"{block}.{replica}", _learner(case, text, block, number), uploads=[trip.upload_seconds])
            for number, ((block, replica), trip) in enumerate(zip(places, self._arrivals.trips(0), strict=True))
        ]
        rules = Rules(
            averaging=self._manifest.averaging,
            compression=case.policy.compression,
            late=case.policy.late,
            discount=self._manifest.rounds.carry_discount,
        )
        self._blocks = [
            Subject(
                number,
                block_layout(case.model).genesis(case.seed, number),
                [w for w, (block, _) in zip(self._workers, places, strict=True) if block == number],
                rules,
            )
            for number in range(blocks)
        ]
        table = embedding_layout(case.model).genesis(case.seed, EMBEDDING)
        self._embedding = Subject(EMBEDDING, table, self._workers, rules)
        self._turns: list[_Turn] = []

    def begin(self) -> float:
        """See how many steps everybody makes before it sends, and when that arrives; the round's length, s."""
        regime, number = self._case.regime, self.outcome.rounds + 1
        self._turns = [
            self._turn(worker, trip) for worker, trip in zip(self._workers, self._arrivals.trips(number), strict=True)
        ]
        return max(turn.arrival for turn in self._turns) if regime.waits else regime.deadline_seconds

    def _turn(self, worker: Worker, trip: Trip) -> _Turn:
        policy, deadline = self._case.policy, self._case.regime.deadline_seconds
        ahead = worker.clock - self.outcome.wall_s  # not above 0 where a step is under way as the round begins
        if policy.steps is None:
            steps = _steps_within(snapshot_at(deadline, worker.uploads) - ahead, trip.step_seconds)
            if worker.trained == 0:
                steps = max(1, steps)
        else:
            steps, ahead = policy.steps, 0.0
        ready = max(0.0, ahead + steps * trip.step_seconds)
        return _Turn(trip, steps, ready + trip.upload_seconds)

    def finish(self, length: float) -> None:
        """Train what the round's steps are, then average what arrived."""
        case, outcome = self._case, self.outcome
        deadline = math.inf if case.regime.waits else case.regime.deadline_seconds
        end = outcome.wall_s + length
        late: dict[str, str] = {}
        fitting: set[str] = set()
        for worker, turn in zip(self._workers, self._turns, strict=True):
            trip = turn.trip
            if case.policy.steps is not None:
                worker.clock = outcome.wall_s
            self._train(worker, turn.steps, trip.step_seconds)
            theta, embedding = worker.learner.read()
            self._blocks[worker.learner.block_index].snapshot(worker, theta)
            self._embedding.snapshot(worker, embedding)
            if case.policy.steps is None:  # it trains on while its update travels
                self._train(worker, _steps_within(end - worker.clock, trip.step_seconds), trip.step_seconds)
            worker.uploads.append(trip.upload_seconds)
            if trip.lost:
                late[worker.id] = "nothing arrived"
            elif turn.arrival > deadline:
                late[worker.id] = "late"
            if not trip.lost and trip.step_seconds + trip.upload_seconds <= deadline:
                fitting.add(worker.id)
        outcome.reachable += len(fitting)
        for subject in self._blocks:
            accepted = subject.settle(late)
            outcome.accepted += len(accepted)
            outcome.reached += len(fitting.intersection(accepted))
        self._embedding.settle(late)
        outcome.rounds += 1
        outcome.wall_s = end
        outcome.asked += len(self._workers)
        outcome.bytes_sent += self._payload * len(self._workers)

    def _train(self, worker: Worker, steps: int, step_seconds: float) -> None:
        for _ in range(steps):
            worker.learner.step()
        worker.trained += steps * worker.learner.samples_per_step
        worker.clock += steps * step_seconds
        self.outcome.steps += steps

    def read(self) -> tuple[Plan, Trained]:
        """The certified states, as measurements take them."""
        case = self._case
        plan = Plan(model=case.model, recipe=self._manifest.recipe, steps=1, seed=case.seed)
        thetas = [subject.state for subject in self._blocks]
        return plan, Trained(thetas, [self._embedding.state] * len(thetas))


@dataclass(frozen=True)
class _Turn:
    """What a worker does in a round."""

    trip: Trip
    steps: int
    """Before it takes the snapshot that it sends."""
    arrival: float
    """Of that, seconds from the beginning of the round."""


def _steps_within(seconds: float, step_seconds: float) -> int:
    return max(0, math.floor(seconds / step_seconds + 1e-9))


def _manifest(case: Case) -> Manifest:
    """The swarm's own rules of averaging, as `blockswarm init` sets them."""
    return create_manifest(
        name="learning",
        now=0.0,
        size=case.model,
        recipe=RECIPES["default"],
        round_seconds=ROUND_SECONDS,
        bandwidth=1e12,
        seed=case.seed,
        late=case.policy.late,
        compression=case.policy.compression,
        local_steps=case.policy.steps or "elastic",
    )


def _learner(case: Case, text: LabText, block: int, number: int) -> BlockLearner:
    recipe, own = RECIPES["default"], 1000 * case.seed + number
    return BlockLearner(
        case.model,
        recipe,
        block,
        block_layout(case.model).genesis(case.seed, block),
        embedding_layout(case.model).genesis(case.seed, EMBEDDING),
        batches=batches(text.corpus, own, recipe.batch, case.model.context),
        seed=own,
        device="cpu",
    )
