"""From the groups' means to a committed state, for one list of one simulated round (docs/protocol.md §6, *Combine*)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blockswarm.swarm.policy.acceptance import quorum
from blockswarm.swarm.policy.grouping_arrays import SeatArrays
from blockswarm.swarm.policy.phases import RoundTimes
from blockswarm.swarm.simulation.peers import Bools, Floats

LEADER_WAITS, TAKE_OVER = 0.4, 0.5
"""Shares of the decide phase after which a leader decides without every report, and the second in its place; of the
commit phase, after which the second proposes (``peer/allreduce.py``)."""

FETCH_PATIENCE = 0.15
"""Share of the commit phase after which a missing part is asked of one more member (``peer/commit.py``)."""


@dataclass(frozen=True)
class Members:
    """What one list's members bring to it; arrays of shape [members] in list order, of groups [groups]."""

    parts: Floats
    """Bytes of the part that each owns."""
    up: Floats
    """Its line, bytes/s."""
    down: Floats
    delay: Floats
    """To the rest of the network, s."""
    leaves: Floats
    """When each is gone."""
    heard: Bools
    """Who has sent its own update in time; others are not heard before."""
    reported: Bools
    """Who has reduced its slice for its group and said so."""
    sums_out: Floats
    """Seconds that each line needs for the groups' means that its owner sends, and that it receives."""
    sums_in: Floats
    results_out: Floats
    """The same for the averaged parts."""
    results_in: Floats
    decided: Bools
    """Which groups have a decision that accepts anybody."""
    decided_at: Floats
    proposer: int
    """Who proposes the outcome, a list position: 0 or 1."""


@dataclass(frozen=True)
class Combined:
    """What came of one list."""

    counted: Bools
    """Groups that are in some part of the new state, shape [groups]."""
    committed: bool
    holds: Bools
    """Who has the new state at the close, shape [members]."""
    moment: float
    """When the last vote that was needed was there; infinite without."""


def combine(members: Members, seats: SeatArrays, times: RoundTimes) -> Combined:
    """Take the groups' decisions to votes. With one group, owners have its mean at once."""
    count = len(members.parts)
    every = np.arange(count)
    owners = members.parts > 0
    reducer = np.where(owners, seats.reducer, 0)
    delay, leaves = members.delay, members.leaves
    travel = np.maximum(members.sums_out[reducer], members.sums_in) + delay[reducer] + delay
    here = reducer == every
    arrival = members.decided_at[:, None] + np.where(here, 0.0, travel)
    coming = members.decided[:, None] & members.reported[reducer] & owners
    there = coming & (arrival <= times.combine_end) & (here | (leaves[reducer] > arrival))
    waits = (coming & ~there) | (~members.decided[:, None] & owners)
    last = np.where(there, arrival, 0.0).max(axis=0)
    made_at = np.where(waits.any(axis=0), np.maximum(times.combine_end, last), last)
    made = there.any(axis=0) & (leaves > made_at)

    # From each owner to every member, shape [members, parts]: by the reducer of the member's own group.
    by = reducer[seats.group_of]
    first = np.maximum(members.results_out, members.results_in[by]) + delay + delay[by]
    second = np.maximum(members.results_out[by], members.results_in[:, None]) + delay[by] + delay[:, None]
    passed_at = made_at + np.where(by == every, 0.0, first)
    back = passed_at + np.where(by == every[:, None], 0.0, second)
    own = np.eye(count, dtype=bool)
    back = np.where(own, made_at, back)
    if seats.count > 1:
        # A part that has not come by the end of the phase is fetched by its hash from those who passed it on elsewhere.
        dead = (leaves[by] < back) & (by != every) & ~own
        late = made & ~own & ((back > times.gather_end) | dead)
        spread = late.sum(axis=0) * members.parts / seats.count
        asked = (spread / members.up, (late * members.parts).sum(axis=1) / members.down)
        patience = FETCH_PATIENCE * (times.close - times.gather_end)
        fetched = times.gather_end + patience + np.maximum(asked[0], asked[1][:, None]) + 2.0 * (delay + delay[:, None])
        back = np.where(dead, fetched, np.where(late, np.minimum(back, fetched), back))
    mine = back[members.proposer]
    included = made & (mine <= times.gather_end) & (own[members.proposer] | (leaves >= mine))
    # The second in order waits for the first before it proposes.
    proposed = times.gather_end + TAKE_OVER * (times.close - times.gather_end) if members.proposer else 0.0
    # A member that lacks a part fetches it by its hash from others until the close; hidden pairs do the same.
    ready = np.maximum(np.where(included, back, 0.0).max(axis=1), proposed) + 2.0 * delay
    holds = (members.heard | (every > 0)) & (ready < times.close) & (leaves > times.close)
    needed = quorum(count)
    committed = bool(included.any()) and int(holds.sum()) >= needed
    voted = np.sort(np.where(holds, ready, np.inf))
    return Combined(
        counted=(there & included).any(axis=1),
        committed=committed,
        holds=holds & committed,
        moment=float(voted[needed - 1]),
    )
