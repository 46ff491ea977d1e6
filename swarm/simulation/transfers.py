"""How states reach those who lack them: downloads as a flow that shares the uplinks of all who hold them."""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.simulation.joining import LEARNER_SECONDS
from blockswarm.swarm.simulation.peers import BLOCK, EMBEDDING, FETCHING, TRAINING, Ints
from blockswarm.swarm.simulation.world import SIDES, World

CARRIED_BEHIND = 2
"""Commits behind up to which pending work is carried over (docs/protocol.md §8)."""


def advance_transfers(world: World, begin: float, end: float) -> float:
    """Move every download from ``begin`` to ``end``; the bytes that arrived.

    Everyone who holds the newest state or the one before gives; what they can send is shared in proportion to what the
    others can receive, so a state that few hold spreads slowly at first.
    """
    peers = world.peers
    alive = peers.alive(begin)
    moved = 0.0
    for column in (BLOCK, EMBEDDING):
        fetchers = np.flatnonzero(alive & (peers.fetching[:, column] >= 0))
        if not len(fetchers):
            continue
        own = _cells(world, fetchers, column)
        holders = np.flatnonzero(alive & (peers.stage == TRAINING) & (peers.block >= 0))
        theirs = _cells(world, holders, column)
        heads = world.heads.version.ravel()
        fresh = peers.version[holders, column] >= heads[theirs] - 1
        holders, theirs = holders[fresh], theirs[fresh]
        supply = np.bincount(theirs, weights=peers.up[holders], minlength=len(heads))
        demand = np.bincount(own, weights=peers.down[fetchers], minlength=len(heads))
        share = np.minimum(1.0, np.divide(supply, demand, out=np.zeros(len(heads)), where=demand > 0))
        rate = peers.down[fetchers] * share[own]
        left = peers.left[fetchers, column]
        got = np.minimum(left, rate * (end - begin))
        done = left <= got
        peers.left[fetchers, column] = left - got
        peers.receive("states", fetchers, got)
        taken = np.bincount(own, weights=got, minlength=len(heads))
        used = np.divide(taken, supply, out=np.zeros(len(heads)), where=supply > 0)
        peers.send("states", holders, used[theirs] * peers.up[holders])
        moved += float(got.sum())
        seconds = np.divide(left, rate, out=np.zeros_like(left), where=rate > 0)
        _finish(world, fetchers[done], column, begin + seconds[done])
    return moved


def _finish(world: World, rows: Ints, column: int, moments: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    peers = world.peers
    behind = peers.fetching[rows, column] - peers.version[rows, column]
    peers.version[rows, column] = peers.fetching[rows, column]
    peers.fetching[rows, column] = -1
    at_work = peers.stage[rows] == TRAINING
    if column == BLOCK:
        kept = np.where(behind <= CARRIED_BEHIND, world.shape.carry, 0.0)
        peers.pending[rows] *= np.where(at_work, kept, 1.0)
    complete = (peers.stage[rows] == FETCHING) & (peers.fetching[rows] < 0).all(axis=1)
    peers.stage[rows[complete]] = TRAINING
    peers.ready[rows[complete]] = moments[complete] + LEARNER_SECONDS


def start_fetching(world: World, now: float) -> None:
    """After a round's close: who has heard of a newer state begins to fetch it.

    The leader tells everyone on record; whom it does not know finds out at the next meeting and begins a round later.
    """
    peers = world.peers
    rows = np.flatnonzero(peers.alive(now) & (peers.stage == TRAINING) & (peers.ready <= now))
    for column in (BLOCK, EMBEDDING):
        cells = _cells(world, rows, column)
        heads = world.heads.version.ravel()[cells]
        behind = heads - peers.version[rows, column]
        idle = peers.fetching[rows, column] < 0
        subject = cells // SIDES
        known = np.append(world.directory.known, world.known(world.shape.blocks))[subject]
        told = (behind > 1) | (world.rng.random(len(rows)) < known)
        starts = (behind > 0) & idle & told
        peers.fetching[rows[starts], column] = heads[starts]
        peers.left[rows[starts], column] = world.shape.state_bytes[column]


def _cells(world: World, rows: Ints, column: int) -> Ints:
    """Number of subject and side of each row, for sums by both."""
    peers = world.peers
    subject = peers.block[rows] if column == BLOCK else np.full(len(rows), world.shape.blocks)
    return np.asarray(SIDES * subject + peers.side[rows])
