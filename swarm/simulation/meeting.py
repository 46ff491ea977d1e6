"""Who averages with whom in one simulated round: docs/protocol.md, *Meet*, for all subjects at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blockswarm.swarm.policy.grouping import choose_members
from blockswarm.swarm.policy.leader import first_in_order
from blockswarm.swarm.policy.phases import RoundTimes
from blockswarm.swarm.signed import MAX_MEMBERS
from blockswarm.swarm.simulation.peers import TRAINING, Bools, Floats, Ints
from blockswarm.swarm.simulation.world import World

PROPOSE_AFTER = 0.5
PROPOSE_AFTER_ALIVE = 0.75
TAKE_OVER_STEP = 0.1
LAST_TURN = 0.95
"""Shares of the meeting at which a list is signed (``peer/meeting.py``, constants of the same names)."""

CALLS_PER_SECOND = 1600.0
"""Small calls that one peer makes and answers in a second. Measured over loopback, calls of 1 KB."""

CALL_BYTES = 600
"""Of a ``round.meet`` or its answer with transport. Estimated from their fields."""


@dataclass(frozen=True)
class Lists:
    """The lists of one round; rows of peers stand in arrays of shape [lists, members], -1 where a list has no more."""

    subject: Ints
    """Shape [lists]; the embedding comes after the blocks."""
    side: Ints
    members: Ints
    """In leader order, the leader first."""
    signed: Floats
    """When each member has its list, shape [lists]."""
    eligible: Ints
    """Replicas of the subject that were training as the round's training ended, shape [lists]."""

    @property
    def present(self) -> Bools:
        """Where ``members`` holds somebody."""
        return self.members >= 0


def form_lists(world: World, times: RoundTimes) -> Lists:
    """Let every subject's replicas meet on every side."""
    training = world.peers.training(times.train_end)
    found: list[tuple[int, int, list[int], float, int]] = []
    calls = _calls(world, training)
    for subject in range(world.shape.blocks + 1):
        for side in world.sides:
            mine = world.rows_of(subject, side, training)
            if len(mine):
                met = _meet(world, times, subject, side, mine, calls)
                found.append((subject, side, *met, len(mine)))
    width = max((len(entry[2]) for entry in found), default=1)
    members = np.full((len(found), max(width, 1)), -1, dtype=np.int64)
    for number, entry in enumerate(found):
        members[number, : len(entry[2])] = entry[2]
    return Lists(
        subject=np.array([entry[0] for entry in found], dtype=np.int64),
        side=np.array([entry[1] for entry in found], dtype=np.int64),
        members=members,
        signed=np.array([entry[3] for entry in found]),
        eligible=np.array([entry[4] for entry in found], dtype=np.int64),
    )


def _calls(world: World, training: Bools) -> float:
    """Meeting calls that a volunteer makes and answers for both its subjects; counts their bytes, too."""
    peers, shape = world.peers, world.shape
    rows = np.flatnonzero(training)
    if not len(rows):
        return 0.0
    replicas = np.bincount(peers.block[rows], minlength=shape.blocks)
    of_block = replicas * world.directory.known
    each = of_block[peers.block[rows]] + len(rows) * world.known(shape.blocks)
    most = CALLS_PER_SECOND * shape.lengths.meet / 2.0
    each = np.minimum(each, most)
    for count in (peers.send, peers.receive):
        count("meeting", rows, 2.0 * CALL_BYTES * each)
    wanted = 2.0 * (of_block.mean() + len(rows) * world.known(shape.blocks))
    return float(wanted)


def _meet(
    world: World, times: RoundTimes, subject: int, side: int, mine: Ints, calls: float
) -> tuple[list[int], float]:
    """The list of one subject on one side, and when its members have it."""
    peers, shape, rng = world.peers, world.shape, world.rng
    column, span = world.column(subject), shape.lengths.meet
    at_head = peers.version[mine, column] == world.heads.version[subject, side]
    free = peers.fetching[mine, column] < 0
    out = world.book(subject, side).out(times.round)
    coming = mine[at_head & free]
    if out:
        kept_out = np.array([int(row) for row in out], dtype=np.int64)
        coming = coming[~np.isin(coming, kept_out)]
    if not len(coming):
        return [], times.meet_end
    in_time = min(1.0, CALLS_PER_SECOND * span / max(calls, 1.0))
    known = world.known(subject)
    meets = (1.0 - (1.0 - known) ** 2) * in_time
    order = coming[
        first_in_order(
            [peers.encoded[row] for row in coming.tolist()],
            run_digest=shape.run_digest,
            subject=subject if subject < shape.blocks else -1,
            round_number=times.round,
            limit=min(len(coming), int(2 * MAX_MEMBERS / max(meets, 0.05)) + 8),
        )
    ]
    leader = order[0]
    reached = rng.random(len(order)) < meets
    reached &= ~(peers.hidden[order] & peers.hidden[leader])
    reached[0] = True
    met = order[reached]
    chosen = choose_members(
        {str(place): not hidden for place, hidden in enumerate(peers.hidden[met].tolist())},
        leader="0",
        group_size=shape.group_size,
        limit=MAX_MEMBERS,
    )
    members = met[np.array([int(place) for place in chosen], dtype=np.int64)]
    moment = _signing(world, times, subject, side, mine, ~free, known, len(members))
    early = float(peers.delay[leader] + peers.delay[members].max()) * 2.0
    moment = max(times.train_end + min(early + calls / CALLS_PER_SECOND, LAST_TURN * span), moment)
    rank = 0
    while len(members) and peers.leaves[members[0]] < moment:  # the next in order takes its turn
        rank, members = rank + 1, members[1:]
        moment = max(moment, times.train_end + span * min(LAST_TURN, PROPOSE_AFTER + rank * TAKE_OVER_STEP))
    if len(members) and peers.hidden[members].all():
        members = members[:1] if len(coming) == 1 else members[:0]  # nobody can be reached by the others
    return members.tolist(), moment + early / 2.0


def _signing(
    world: World,
    times: RoundTimes,
    subject: int,
    side: int,
    mine: Ints,
    busy: Bools,
    known: float,
    members: int,
) -> float:
    """When the leader stops waiting: who is on record and silent makes it wait, most of all if it is alive."""
    peers, span = world.peers, world.shape.lengths.meet
    chance = world.rng.random(2)
    if chance[0] < 1.0 - (1.0 - known) ** int(busy.sum()):
        return times.train_end + PROPOSE_AFTER_ALIVE * span
    gone = (peers.stage == TRAINING) & peers.on_record(times.train_end) & (peers.leaves <= times.train_end)
    ghosts = len(world.rows_of(subject, side, gone))
    if chance[1] < 1.0 - (1.0 - known) ** ghosts:
        return times.train_end + PROPOSE_AFTER * span
    if members == 1 and len(mine) > 1:  # others are on record: they get their time to call before a lone commit
        return times.train_end + PROPOSE_AFTER * span
    return times.train_end
