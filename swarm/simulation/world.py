"""What a simulation is about at one moment: the volunteers, the heads of what they train, and the directory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.standing import Standing
from blockswarm.swarm.simulation.directory import DirectoryState
from blockswarm.swarm.simulation.peers import BLOCK, EMBEDDING, Bools, Ints, Peers
from blockswarm.swarm.simulation.scenario import Scenario
from blockswarm.swarm.simulation.shape import SwarmShape

SIDES = 2
"""Parts of a partition; without one everybody is in the first."""

TRANSFER_STEPS = 5
"""Steps of a round in which transfers advance and coverage is looked at."""


class Heads:
    """The newest certified state of every subject on either side. Subjects: the blocks, then the embedding."""

    def __init__(self, subjects: int) -> None:
        self.version: npt.NDArray[np.int64] = np.zeros((subjects, SIDES), dtype=np.int64)
        """Commits so far; a state that was lost counts as one more, so that no two have one number."""
        self.samples: npt.NDArray[np.float64] = np.zeros((subjects, SIDES))
        """Certified samples behind it."""
        self.last: npt.NDArray[np.float64] = np.zeros((subjects, SIDES))
        """Those of its last commit, which a rollback takes back."""


@dataclass
class World:
    """State that all parts of a simulation share."""

    scenario: Scenario
    shape: SwarmShape
    rng: np.random.Generator
    peers: Peers
    directory: DirectoryState
    heads: Heads
    standing: dict[tuple[int, int], Standing] = field(default_factory=dict)
    """Who is kept out, by subject and side. Every replica keeps its own book; here those of one side share one."""
    donors: dict[int, Bools] = field(default_factory=dict)
    """Who is asked for states, by column; empty: everyone on record."""
    leaders: dict[tuple[int, int], deque[int]] = field(default_factory=dict)
    """Leaders of a subject's last commits on a side: news of a state names them as its holders."""
    split: bool = False
    """Whether a partition lasts."""
    states_lost: int = 0
    """Blocks that began again from the genesis, because nobody held their state any more."""
    restarted: int = 0
    """Downloads that began again, because nobody gave their state any more."""
    rolled_back: int = 0
    """Commits lost with all that held them."""

    @property
    def sides(self) -> range:
        """The parts there are now."""
        return range(SIDES if self.split else 1)

    def column(self, subject: int) -> int:
        """Which of a volunteer's two subjects that is."""
        return EMBEDDING if subject == self.shape.blocks else BLOCK

    def rows_of(self, subject: int, side: int, among: Bools) -> Ints:
        """Rows of a mask that have the subject, on one side."""
        peers = self.peers
        mine = among & (peers.side == side)
        if subject < self.shape.blocks:
            mine &= peers.block == subject
        return np.flatnonzero(mine)

    def book(self, subject: int, side: int) -> Standing:
        """The standing of everyone in the eyes of one side's replicas of a subject."""
        return self.standing.setdefault((subject, side), Standing())

    def known(self, subject: int) -> float:
        """Share of a subject's replicas that another volunteer finds in the directory."""
        if subject < self.shape.blocks:
            return float(self.directory.known[subject])
        return self.directory.known_elsewhere

    def heads_held(self, now: float) -> None:
        """Go back to the newest state that somebody still holds; who joins a block nobody holds begins it again."""
        peers, heads = self.peers, self.heads
        alive = peers.alive(now) & (peers.block >= 0)
        rows = np.flatnonzero(alive)
        for column in (BLOCK, EMBEDDING):
            subject = peers.block[rows] if column == BLOCK else np.full(len(rows), self.shape.blocks)
            newest = np.full_like(heads.version, -1)
            np.maximum.at(newest, (subject, peers.side[rows]), peers.version[rows, column])
            there = np.zeros_like(heads.version, dtype=bool)
            there[subject, peers.side[rows]] = True
            for number, side in np.argwhere(there & (newest < heads.version)):
                mine = rows[(subject == number) & (peers.side[rows] == side)]
                if newest[number, side] < 0:
                    self._begin_again(int(number), int(side), mine, column)
                else:
                    self.rolled_back += int(heads.version[number, side] - newest[number, side])
                    heads.version[number, side] = newest[number, side]
                    heads.samples[number, side] -= heads.last[number, side]
                    heads.last[number, side] = 0.0
                    too_new = mine[peers.fetching[mine, column] > newest[number, side]]
                    peers.fetching[too_new, column] = newest[number, side]

    def _begin_again(self, subject: int, side: int, mine: Ints, column: int) -> None:
        heads, peers = self.heads, self.peers
        self.states_lost += int(heads.samples[subject, side] > 0)
        heads.version[subject, side] += 1
        heads.samples[subject, side] = heads.last[subject, side] = 0.0
        # The genesis is computed, not fetched; who has chosen the block but not begun to fetch finds it at the others.
        fetching = mine[peers.fetching[mine, column] >= 0]
        peers.fetching[fetching, column] = heads.version[subject, side]
        peers.left[fetching, column] = 0.0
