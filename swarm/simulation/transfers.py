"""How states reach those who lack them: downloads as a flow that shares the uplinks of all who hold them."""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.policy.phases import RoundTimes
from blockswarm.swarm.simulation.joining import LEARNER_SECONDS
from blockswarm.swarm.simulation.peers import BLOCK, EMBEDDING, FETCHING, TRAINING, Bools, Floats, Ints
from blockswarm.swarm.simulation.world import SIDES, World

KEPT_ALWAYS, KEPT_AT_MOST, KEPT_SECONDS = 3, 6, 60.0
"""States that a volunteer keeps: the last three, and older ones for a minute after use, six at most (protocol §8)."""

MOST_ASKED = 12
"""Holders that were asked for a state, where the scenario's ``donors`` is "first"."""

SETTLES_SECONDS = 0.2
"""After a close, before who met others that are ahead asks them (``peer/volunteer.py``: COMMIT_SETTLES_SECONDS)."""

CARRIED_BEHIND = 2
"""Commits behind up to which pending work is carried over (docs/protocol.md §8)."""


def advance_transfers(world: World, begin: float, end: float) -> None:
    """Move every download from ``begin`` to ``end``.

    Each state is given by those who hold it or have moved on from it only lately. What a holder can send is shared
    among the states that are wanted of it, and each state's share among those who fetch it, in proportion to what they
    can receive. So a state that few hold spreads slowly at first.
    """
    peers = world.peers
    alive = peers.alive(begin)
    heads = world.heads.version.ravel()
    kept = kept_states(world.shape.seconds)
    for column in (BLOCK, EMBEDDING):
        fetchers = np.flatnonzero(alive & (peers.fetching[:, column] >= 0) & (peers.since[:, column] < end))
        if not len(fetchers):
            continue
        own = _cells(world, fetchers, column)
        holders = _givers(world, alive, column)
        theirs = _cells(world, holders, column)
        # How far behind the newest state everyone's is: tables by subject and lag are small.
        deepest = 2 * kept
        wanted = heads[own] - peers.fetching[fetchers, column]
        behind = heads[theirs] - peers.version[holders, column]
        near, given = wanted <= deepest, behind <= deepest
        table = len(heads), deepest + 1
        demand = _table(table, own[near], wanted[near], peers.down[fetchers[near]])
        supply = _table(table, theirs[given], behind[given], peers.up[holders[given]])
        granted, used = _share(supply, demand, kept)
        lag = np.minimum(wanted, deepest)
        rate = np.where(near, peers.down[fetchers] * granted[own, lag], 0.0)
        left = peers.left[fetchers, column]
        start = np.maximum(begin, peers.since[fetchers, column])
        seconds = np.divide(left, rate, out=np.where(left > 0, np.inf, 0.0), where=rate > 0)
        got = np.minimum(left, rate * (end - start))
        peers.left[fetchers, column] = left - got
        peers.receive("states", fetchers, got)
        # A download that ends within the step takes less than was granted for all of it.
        taken = _table(table, own[near], lag[near], got[near])
        offered = granted * demand * (end - begin)
        real = np.divide(taken, offered, out=np.zeros(table), where=offered > 0)
        sent = (
            (used * _windows(real, kept)).sum(axis=2)[theirs[given], behind[given]]
            * peers.up[holders[given]]
            * (end - begin)
        )
        peers.send("states", holders[given], sent)
        done = seconds <= end - start
        _finish(world, fetchers[done], column, start[done] + seconds[done])


def _givers(world: World, alive: Bools, column: int) -> Ints:
    """Who has a state and is asked for it."""
    peers = world.peers
    giving = alive & (peers.stage == TRAINING) & (peers.version[:, column] >= 0)
    if column in world.donors:
        asked = world.donors[column]
        giving[: len(asked)] &= asked
        giving[len(asked) :] = False
    return np.flatnonzero(giving)


def choose_donors(world: World, now: float) -> None:
    """Whom everybody asks from now on, where the scenario's ``donors`` is "first".

    Then they ask twelve: the leader who told them of the state, then the first on record in the order of their ids. So
    all of them ask the same. As peers choose now (``policy/asking.py``), each asks others, and all who hold a state
    give it evenly: there is nothing to choose here.
    """
    peers = world.peers
    if world.scenario.what_if.donors != "first":
        return
    rows = np.flatnonzero(peers.on_record(now) & (peers.stage == TRAINING) & (peers.block >= 0))
    for column in (BLOCK, EMBEDDING):
        cells = _cells(world, rows, column)
        order = np.lexsort((peers.order[rows], cells))
        begins = np.searchsorted(cells[order], np.arange(world.heads.version.size))
        place = np.arange(len(rows)) - begins[cells[order]]
        asked = np.zeros(peers.count, dtype=bool)
        asked[rows[order[place < MOST_ASKED - 1]]] = True
        for (subject, _), leaders in world.leaders.items():
            if world.column(subject) == column:
                asked[list(leaders)] = True
        world.donors[column] = asked


def kept_states(round_seconds: float) -> int:
    """States that a holder can give: the last three, and up to three more while they are asked for."""
    return max(KEPT_ALWAYS, min(KEPT_AT_MOST, int(KEPT_SECONDS // round_seconds)))


def _table(shape: tuple[int, int], first: Ints, second: Ints, amounts: Floats) -> Floats:
    flat = np.bincount(first * shape[1] + second, weights=amounts, minlength=shape[0] * shape[1])
    return np.asarray(flat.astype(np.float64).reshape(shape))


def _share(supply: Floats, demand: Floats, kept: int) -> tuple[Floats, Floats]:
    """How uplinks meet downlinks; tables of shape [subjects and sides, commits behind the newest].

    Returns
    -------
    granted : ndarray
        Share of its downlink that a fetcher of a state gets.
    used : ndarray, shape [subjects and sides, commits behind, kept]
        For each number of commits that a holder has moved on from a state: the share of its uplink that goes to those
        who fetch it.
    """
    lags = supply.shape[1]
    wanted = _windows(demand, kept)  # a holder that is l behind has the states that are l, l + 1, … behind
    asked = wanted.sum(axis=2, keepdims=True)
    portion = np.divide(wanted, asked, out=np.zeros(wanted.shape), where=asked > 0)
    offered = np.zeros_like(demand)
    for step in range(kept):
        offered[:, step:] += (supply * portion[:, :, step])[:, : lags - step]
    granted = np.minimum(1.0, np.divide(offered, demand, out=np.zeros_like(demand), where=demand > 0))
    scale = np.divide(granted * demand, offered, out=np.zeros_like(demand), where=offered > 0)
    return granted, portion * _windows(scale, kept)


def _windows(table: Floats, width: int) -> Floats:
    """Each entry with the ``width - 1`` after it in its row, zeros beyond the end."""
    padded = np.concatenate([table, np.zeros((len(table), width - 1))], axis=1)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, width, axis=1))


def _finish(world: World, rows: Ints, column: int, moments: Floats) -> None:
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


def start_fetching(world: World, times: RoundTimes, committed: Floats, untold: Bools) -> None:
    """After a round's commits: who has heard of a newer state begins to fetch it.

    A leader that has committed tells everyone on record who was not in its list. Whom nobody told finds out at the next
    meeting and begins after that round's close. Whose download is of a state that nobody gives any more begins again
    with the newest: its chunks are others.

    Parameters
    ----------
    world : World
        Whose heads are those after the commits.
    times : RoundTimes
        The round.
    committed : ndarray, shape [subjects, sides]
        When the round committed, the close where it did not.
    untold : ndarray of bool, shape [peers, 2]
        Whom nobody tells of a subject's new state, by column: members of a list, and everyone where the leader failed.
    """
    peers, now = world.peers, times.train_end
    _begin_anew(world, now)
    rows = np.flatnonzero(peers.alive(now) & (peers.stage == TRAINING) & (peers.ready <= now))
    for column in (BLOCK, EMBEDDING):
        cells = _cells(world, rows, column)
        heads = world.heads.version.ravel()[cells]
        behind = heads - peers.version[rows, column]
        idle = peers.fetching[rows, column] < 0
        subject = cells // SIDES
        known = np.append(world.directory.known, world.known(world.shape.blocks))[subject]
        told = (behind > 1) | ((world.rng.random(len(rows)) < known) & ~untold[rows, column])
        starts = (behind > 0) & idle & told
        peers.fetching[rows[starts], column] = heads[starts]
        peers.left[rows[starts], column] = world.shape.state_bytes[column]
        at_once = committed.ravel()[cells]
        peers.since[rows[starts], column] = np.where(behind > 1, times.close + SETTLES_SECONDS, at_once)[starts]


def _begin_anew(world: World, now: float) -> None:
    peers = world.peers
    alive = peers.alive(now)
    heads = world.heads.version.ravel()
    kept = kept_states(world.shape.seconds)
    for column in (BLOCK, EMBEDDING):
        rows = np.flatnonzero(alive & (peers.fetching[:, column] >= 0) & (peers.left[:, column] > 0))
        if not len(rows):
            continue
        holders = _givers(world, alive, column)
        cells, targets = _cells(world, rows, column), peers.fetching[rows, column]
        theirs, versions = _cells(world, holders, column), peers.version[holders, column]
        span = int(max(heads.max(), targets.max(), versions.max(initial=0))) + 1
        # Every (subject and side, version) that somebody can give, as one number each.
        given = np.unique((theirs * span)[:, None] + np.maximum(versions[:, None] - np.arange(kept), 0))
        lost = ~np.isin(cells * span + targets, given) & (targets != heads[cells])
        world.restarted += int(lost.sum())
        peers.fetching[rows[lost], column] = heads[cells[lost]]
        peers.left[rows[lost], column] = world.shape.state_bytes[column]


def _cells(world: World, rows: Ints, column: int) -> Ints:
    """Number of subject and side of each row, for sums by both."""
    peers = world.peers
    subject = peers.block[rows] if column == BLOCK else np.full(len(rows), world.shape.blocks)
    return np.asarray(SIDES * subject + peers.side[rows])
