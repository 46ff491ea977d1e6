"""How simulated newcomers find a block: they look, announce, look again, and fetch, as ``peer/joining.py`` does."""

from __future__ import annotations

import heapq
import random
from functools import partial

import numpy as np

from blockswarm.swarm.policy.placement import join_delay
from blockswarm.swarm.policy.placement_arrays import choose_blocks, choose_mover, settle_all, strengths_of
from blockswarm.swarm.simulation.directory import lookup_seconds
from blockswarm.swarm.simulation.peers import BLOCK, EMBEDDING, FETCHING, TRAINING, Ints
from blockswarm.swarm.simulation.world import World

START_SECONDS = 3.0
"""From the start of the program to its first look: imports, p2pd, connections, manifest. Estimated: 2 to 4 s."""

LEARNER_SECONDS = 3.0
"""From the last byte of the states to the first optimizer step. Estimated: 2 to 4 s."""

SETTLES_SECONDS = 1.5
"""Before it looks again (``peer/joining.py``: ANNOUNCE_SETTLES_SECONDS)."""

MOST_LOOKS = 3
"""Times it looks again at most (``peer/joining.py``: MOST_RECHECKS)."""

TICK = 0.5
"""Seconds: who looks within one tick sees the same directory, for announcements take about as long to arrive."""


class Joining:
    """Everyone who is looking for a block.

    Parameters
    ----------
    world : World
        What they look at, and where they are entered.
    seed : int
        Of the delays that the placement policy draws.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._delays = random.Random(seed)
        self._due: list[tuple[float, int, int]] = []

    def arrive(self, rows: Ints) -> None:
        """These have started their programs."""
        searches = self._search(len(rows))
        for row, search in zip(rows.tolist(), searches, strict=True):
            first = float(self._world.peers.joined[row]) + START_SECONDS + join_delay(self._delays) + search
            heapq.heappush(self._due, (first, row, 0))

    def advance(self, until: float) -> None:
        """Everything that newcomers do before ``until``."""
        while self._due and self._due[0][0] < until:
            tick = TICK * (self._due[0][0] // TICK)
            looking = []
            while self._due and self._due[0][0] < min(tick + TICK, until):
                due, row, look = heapq.heappop(self._due)
                if self._world.peers.leaves[row] > due:
                    looking.append((due, row, look))
            for side in self._world.sides:
                mine = [entry for entry in looking if self._world.peers.side[entry[1]] == side]
                self._look(tick, side, [entry for entry in mine if entry[2] == 0])
                self._look_again(tick, side, [entry for entry in mine if entry[2] > 0])

    def move_one(self, now: float, turn: int) -> None:
        """After a round: whoever the placement policy sends to another block goes there."""
        peers = self._world.peers
        for side in self._world.sides:
            rows = self._on_record(now, side)
            joining = peers.stage[rows] != TRAINING
            found = choose_mover(
                self._world.shape.blocks,
                peers.block[rows],
                peers.speed[rows] * ~joining,
                joining,
                id_of=partial(_id, peers.ids, rows),
                turn=turn,
            )
            if found is None or not peers.alive(now)[rows[found[0]]]:
                continue
            row = rows[found[0]]
            peers.block[row] = found[1]
            peers.version[row, BLOCK] = -1
            peers.pending[row] = 0.0
            self._fetch(int(row), embedding=False)

    def _look(self, tick: float, side: int, looking: list[tuple[float, int, int]]) -> None:
        if not looking:
            return
        peers, blocks = self._world.peers, self._world.shape.blocks
        rows = self._on_record(tick, side)
        speed = peers.speed[rows] * (peers.stage[rows] == TRAINING)
        strengths = strengths_of(blocks, peers.block[rows], speed)
        chosen = choose_blocks(strengths, [peers.ids[row] for _, row, _ in looking])
        for (due, row, _), block in zip(looking, chosen.tolist(), strict=True):
            self._announce(due, row, block, look=1)

    def _look_again(self, tick: float, side: int, looking: list[tuple[float, int, int]]) -> None:
        if not looking:
            return
        peers, blocks = self._world.peers, self._world.shape.blocks
        rows = self._on_record(tick, side)
        settled = rows[peers.stage[rows] == TRAINING]
        asking = [row for _, row, _ in looking]
        joining = sorted({*rows[peers.stage[rows] != TRAINING].tolist(), *asking})
        better = dict(
            zip(
                joining,
                settle_all(
                    blocks,
                    peers.block[settled],
                    peers.speed[settled],
                    joining_ids=[peers.ids[row] for row in joining],
                    joining_blocks=peers.block[joining].tolist(),
                ),
                strict=True,
            )
        )
        for due, row, look in looking:
            if better[row] == peers.block[row]:
                self._fetch(row)
            elif look < MOST_LOOKS:
                self._announce(due, row, better[row], look + 1)
            else:
                peers.block[row] = better[row]
                self._fetch(row)

    def _announce(self, due: float, row: int, block: int, look: int) -> None:
        peers = self._world.peers
        search, store = self._search(2).tolist()
        peers.block[row] = block
        peers.announced[row] = due + store
        pause = SETTLES_SECONDS + join_delay(self._delays, 0.5)
        heapq.heappush(self._due, (due + store + pause + search, row, look))

    def _fetch(self, row: int, *, embedding: bool = True) -> None:
        world, peers = self._world, self._world.peers
        side = peers.side[row]
        peers.stage[row] = FETCHING
        peers.fetching[row, BLOCK] = world.heads.version[peers.block[row], side]
        peers.left[row, BLOCK] = world.shape.state_bytes[BLOCK]
        if embedding:
            peers.fetching[row, EMBEDDING] = world.heads.version[world.shape.blocks, side]
            peers.left[row, EMBEDDING] = world.shape.state_bytes[EMBEDDING]

    def _on_record(self, now: float, side: int) -> Ints:
        """Rows that a newcomer on this side finds in the directory."""
        peers = self._world.peers
        listed = self._world.directory.listed[np.maximum(peers.block, 0)]
        seen = peers.on_record(now) & (peers.side == side) & (peers.block >= 0) & (peers.place < listed)
        return np.flatnonzero(seen)

    def _search(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        world = self._world
        return lookup_seconds(
            world.rng,
            size,
            requests=world.directory.requests,
            rtt=world.scenario.network.rtt_ms.median / 1000,
            stale=0.0,
            unanswered=1.0 - float(world.directory.answered.mean()),
        )


def _id(ids: list[str], rows: Ints, index: int) -> str:
    return ids[int(rows[index])]


def warm_start(world: World, rows: Ints) -> None:
    """Put the first volunteers where they would be after a long time: at their posts, with the newest states."""
    peers, blocks = world.peers, world.shape.blocks
    shares = world.scenario.start.shares
    if shares is None:
        # Placement fills the weakest block: strengths end up equal. A greedy pass over speeds, fastest first, is that.
        total = np.zeros(blocks)
        for row in rows[np.argsort(-peers.speed[rows], kind="stable")].tolist():
            block = int(total.argmin())
            peers.block[row] = block
            total[block] += peers.speed[row]
    else:
        bounds = np.round(np.cumsum(shares) / sum(shares) * len(rows)).astype(np.int64)
        peers.block[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
    for row, given in zip(rows.tolist(), world.scenario.volunteers, strict=False):
        if given.block is not None:
            peers.block[row] = given.block
    peers.stage[rows] = TRAINING
    peers.version[rows] = 0
    peers.announced[rows] = peers.ready[rows] = 0.0
