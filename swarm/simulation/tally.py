"""What a simulation writes down as it goes, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from blockswarm.swarm.simulation.exchange import Outcome
from blockswarm.swarm.simulation.peers import Floats, Ints
from blockswarm.swarm.simulation.serving import Served
from blockswarm.swarm.simulation.world import World


@dataclass
class Healing:
    """How a swarm recovers from a loss."""

    at: float
    lost: int
    waiting: set[int]
    """Blocks that have not yet committed a round without anybody who was lost."""
    seconds: float | None = None


@dataclass
class Tally:
    """Figures so far. Lists hold one entry a round unless said otherwise."""

    blocks: int
    participation: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)
    """Share of the training replicas that stood in a list."""
    volunteers: list[int] = field(default_factory=list)
    training: list[int] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    """Share of the blocks that somebody holds; one entry a step."""
    fewest: list[int] = field(default_factory=list)
    """Replicas of the weakest block; one entry a step."""
    gaps: list[float] = field(default_factory=list)
    """Seconds that a block was bare, once it is over."""
    accepted: int = 0
    eligible: int = 0
    late: int = 0
    faulty: int = 0
    members: int = 0
    lone: int = 0
    weight_of_liars: float = 0.0
    certified: float = 0.0
    """Samples that entered certified states of blocks."""
    trained: float = 0.0
    """Samples trained."""
    round_seconds: list[float] = field(default_factory=list)
    """From the end of training to the commit; one entry a commit of a block."""
    scatter_seconds: list[float] = field(default_factory=list)
    requests: int = 0
    success: list[Floats] = field(default_factory=list)
    latency: list[Floats] = field(default_factory=list)
    hottest: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    healings: list[Healing] = field(default_factory=list)
    forked: int = 0
    """Commits that a partition made and nobody kept."""

    def __post_init__(self) -> None:
        self.commits: Ints = np.zeros(self.blocks, dtype=np.int64)
        """Committed rounds of each block on the first side."""
        self.rounds = 0
        self.bare_since: Floats = np.full(self.blocks, np.nan)

    def look(self, world: World, now: float) -> None:
        """Who holds which block right now."""
        peers = world.peers
        holders = peers.training(now) & (peers.side == 0)
        replicas = np.bincount(peers.block[holders], minlength=self.blocks)
        bare = replicas == 0
        self.coverage.append(float(1.0 - bare.mean()))
        self.fewest.append(int(replicas.min()))
        ended = ~bare & ~np.isnan(self.bare_since)
        self.gaps += (now - self.bare_since[ended]).tolist()
        self.bare_since[ended] = np.nan
        self.bare_since[bare & np.isnan(self.bare_since)] = now

    def round(self, world: World, outcome: Outcome, close: float) -> None:
        """What came of one round."""
        peers, lists = world.peers, outcome.lists
        self.rounds += 1
        of_blocks = lists.subject < self.blocks
        eligible = int(lists.eligible[of_blocks].sum())
        accepted = int((outcome.weights[of_blocks] > 0).sum())
        members = int(lists.present[of_blocks].sum())
        self.eligible += eligible
        self.accepted += accepted
        self.members += members
        self.late += int(outcome.late[of_blocks].sum())
        self.faulty += int(outcome.faulty[of_blocks].sum())
        self.participation.append(accepted / eligible if eligible else np.nan)
        self.listed.append(members / eligible if eligible else np.nan)
        alive = peers.alive(close)
        self.volunteers.append(int(alive.sum()))
        self.training.append(int(peers.training(close).sum()))
        done = of_blocks & outcome.committed
        self.lone += int((lists.present[done].sum(axis=1) == 1).sum())
        self.round_seconds += outcome.seconds[done].tolist()
        self.scatter_seconds += outcome.scatter_seconds[done].tolist()
        np.add.at(self.commits, lists.subject[done & (lists.side == 0)], 1)
        weights = outcome.weights[of_blocks]
        self.certified += float(weights.sum())
        self.weight_of_liars += float(weights[peers.liar[np.maximum(lists.members[of_blocks], 0)]].sum())
        directory = world.directory
        self.hottest.append(directory.hottest)
        self.answered.append(float(directory.answered.mean()))
        self.known.append(float(directory.known.mean()))
        for healing in self.healings:
            if healing.seconds is None:
                self._heal(healing, world, outcome, done, close)

    def _heal(self, healing: Healing, world: World, outcome: Outcome, done: np.ndarray, close: float) -> None:
        lists, peers = outcome.lists, world.peers
        for number in np.flatnonzero(done):
            members = lists.members[number][lists.present[number]]
            if (peers.leaves[members] > healing.at).all():
                healing.waiting.discard(int(lists.subject[number]))
        if not healing.waiting:
            healing.seconds = close - healing.at

    def served(self, served: Served) -> None:
        """Requests of one round."""
        self.requests += served.requests
        self.success.append(served.success)
        self.latency.append(served.latency)
