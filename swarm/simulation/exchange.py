"""What becomes of the lists of one simulated round: scatter, decide, gather and commit, for all lists at once.

Times are those of docs/protocol.md §6: a part moves as fast as the slower of two lines, each of which carries all that
its owner sends or receives in that phase. Arrays have shape [groups, members]; of pairs [groups, from, to].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.acceptance_arrays import decide_all
from blockswarm.swarm.policy.phases import RoundTimes, with_combining
from blockswarm.swarm.simulation.combining import LEADER_WAITS, TAKE_OVER, Members, combine
from blockswarm.swarm.simulation.meeting import Lists
from blockswarm.swarm.simulation.peers import Bools, Floats, Ints
from blockswarm.swarm.simulation.seating import Groups, deal_out
from blockswarm.swarm.simulation.world import World

NORM_SPREAD = 0.15
"""Spread of the logarithm of updates' lengths around the square root of their samples. Assumed."""

LIE_LENGTH = 30.0
"""How many times too long the update of a ``long`` liar is."""

LIE_SAMPLES = 10.0
"""How many times its samples a ``samples`` liar claims."""

BUSY_AT_MOST = 0.8
"""Share of an uplink that other traffic can take from averaging: TCP shares a line between flows."""


@dataclass(frozen=True)
class Outcome:
    """What came of the lists; arrays of shape [lists, members] unless said otherwise."""

    lists: Lists
    samples: Floats
    """What each member said."""
    weights: Floats
    """Of accepted updates, 0 for others."""
    late: Bools
    """Whose parts were not all in time."""
    faulty: Bools
    """Whose updates were refused for what they are."""
    committed: Bools
    """Whether the list certified a state, shape [lists]."""
    holds: Bools
    """Who has the new state at the close."""
    seconds: Floats
    """From the end of training to the last vote that was needed, shape [lists]; NaN without a commit."""
    scatter_seconds: Floats
    """Of the scatter phase, shape [lists]."""


def run_lists(world: World, times: RoundTimes, lists: Lists) -> Outcome:
    """Take every list from its parts to its votes."""
    groups = deal_out(world, lists)
    present = groups.present
    row = np.maximum(groups.members, 0)
    size = present.sum(axis=1)
    single = groups.count == 1
    alone = single & (size == 1)
    reduces = groups.slices > 0
    lines = _Lines(world, row, present)
    samples, norms, lies = _updates(world, row, present)
    several = with_combining(times, 2)
    scatter_end = np.where(single, times.scatter_end, several.scatter_end)
    peers = world.peers

    whole = groups.slices.sum(axis=1, keepdims=True)
    needs = np.where(present & ~alone[:, None], whole - groups.slices, 0.0)
    collects = groups.slices * np.maximum(size - 1, 0)[:, None]
    begin = lists.signed[groups.list_of]
    arrival = begin[:, None, None] + lines.times(needs, collects)  # of i's slice at reducer j
    pairs = present[:, :, None] & reduces[:, None, :]
    missing = (arrival > scatter_end[:, None, None]) | (peers.leaves[row][:, :, None] < arrival)
    missing |= (peers.hidden[row][:, :, None] & peers.hidden[row][:, None, :]) | (lies == "silent")[:, :, None]
    missing &= ~np.eye(row.shape[1], dtype=bool)
    missing &= pairs
    all_in = np.asarray(~missing.any(axis=(1, 2)))
    last = np.where(pairs & ~missing, arrival, begin[:, None, None]).max(axis=(1, 2))
    scattered = np.where(all_in, last, scatter_end)
    # What a member says waits behind what it is still sending: until then it has no voice.
    heard = present & (begin[:, None] + lines.seconds(needs, needs)[0] <= scatter_end[:, None])
    reports = reduces & heard & (peers.leaves[row] > scattered[:, None] + lines.delay)
    late = present & (missing & reports[:, None, :]).any(axis=2)
    faulty = present & np.asarray(lies == "nan")

    decide_end = np.where(single, times.decide_end, several.decide_end)
    decided, decided_at, rank = _decided(world, groups, scatter_end, decide_end, scattered, heard, lines)
    sound = present & ~late & ~faulty & np.any(reports, axis=1, keepdims=True) & decided[:, None]
    shape = world.shape
    verdicts = decide_all(
        samples,
        norms,
        sound,
        max_norm_ratio=shape.max_norm_ratio,
        max_weight_ratio=shape.max_weight_ratio,
        robust=shape.robust,
        clip_ratio=shape.clip_ratio,
    )
    decided &= verdicts.weights.sum(axis=1) > 0

    others = (groups.count - 1)[:, None]
    passed_on = np.where(present, groups.slices - groups.parts, 0.0)
    sums = passed_on, groups.parts * others
    mates = np.maximum(size - 1, 0)[:, None]
    total = groups.whole()[:, None]
    results = groups.parts * (others + mates) + passed_on * mates, np.where(present, total - groups.parts, 0.0)
    seconds = [lines.seconds(sums[0], sums[1]), lines.seconds(results[0], results[1])]

    found = Outcome(
        lists=lists,
        samples=np.zeros(lists.members.shape),
        weights=np.zeros(lists.members.shape),
        late=np.zeros(lists.members.shape, dtype=bool),
        faulty=np.zeros(lists.members.shape, dtype=bool),
        committed=np.zeros(len(lists.subject), dtype=bool),
        holds=np.zeros(lists.members.shape, dtype=bool),
        seconds=np.full(len(lists.subject), np.nan),
        scatter_seconds=np.zeros(len(lists.subject)),
    )
    for number, seats in enumerate(groups.seats):
        mine, at_row, at_column = groups.of(number)
        if not len(mine):
            continue
        where = at_row, at_column
        leaves = peers.leaves[row[where]]
        # With several groups the first of the list proposes, or the second in its place.
        root_gone = not heard[where][0] or leaves[0] <= several.gather_end
        members = Members(
            parts=groups.parts[where],
            up=lines.up[where],
            down=lines.down[where],
            delay=lines.delay[where],
            leaves=leaves,
            heard=heard[where],
            reported=reports[where],
            sums_out=seconds[0][0][where],
            sums_in=seconds[0][1][where],
            results_out=seconds[1][0][where],
            results_in=seconds[1][1][where],
            decided=decided[mine],
            decided_at=decided_at[mine],
            proposer=int(rank[mine[0]] if seats.count == 1 else root_gone),
        )
        combined = combine(members, seats, times if seats.count == 1 else several)
        width = len(at_row)
        found.samples[number, :width] = samples[where]
        found.late[number, :width] = late[where]
        found.faulty[number, :width] = (faulty | verdicts.too_long)[where]
        found.committed[number] = combined.committed
        found.scatter_seconds[number] = (scattered - begin)[mine].max()
        if combined.committed:
            found.holds[number, :width] = combined.holds
            found.weights[number, :width] = verdicts.weights[where] * combined.counted[seats.group_of]
            found.seconds[number] = combined.moment - times.train_end
    ends = np.where(single, times.gather_end, several.gather_end) - decided_at
    moved = lines.moved(needs, scatter_end - begin), lines.moved(results[0], ends)
    _count_bytes(world, groups, moved, decided | ~single, passed_on)
    return found


class _Lines:
    """What the lines of a round's members can do, given that both subjects of a peer share them."""

    def __init__(self, world: World, row: Ints, present: Bools) -> None:
        peers = world.peers
        busy = np.minimum(BUSY_AT_MOST, peers.bytes_before[row] / peers.up[row])
        self.delay = np.where(present, peers.delay[row], 0.0)
        self.up = peers.up[row] * (1.0 - busy)
        self.down = peers.down[row]
        self._row, self._present = row, present

    def times(self, sending: Floats, receiving: Floats) -> Floats:
        """Seconds until what is sent from one to another has arrived, shape [lists, from, to]."""
        out, into = self.seconds(sending, receiving)
        travel = self.delay[:, :, None] + self.delay[:, None, :]
        return np.asarray(np.maximum(out[:, :, None], into[:, None, :]) + travel)

    def seconds(self, sending: Floats, receiving: Floats) -> tuple[Floats, Floats]:
        """Seconds that each member's line needs for what it sends, and for what it receives."""
        return self._seconds(sending, self.up), self._seconds(receiving, self.down)

    def moved(self, amounts: Floats, lasting: Floats) -> Floats:
        """Which share of what a member sends has left by the end of a phase: then sending is cut off.

        ``lasting`` are the seconds of the phase, shape [groups].
        """
        wanted = np.maximum(self._seconds(amounts, self.up), 1e-9)
        return np.asarray(np.minimum(1.0, np.maximum(lasting, 0.0)[:, None] / wanted))

    def _seconds(self, amounts: Floats, rate: Floats) -> Floats:
        # A peer that is in two lists, of its block and of the embedding, moves the parts of both at once.
        total = np.bincount(self._row[self._present], weights=amounts[self._present], minlength=1)
        everything = np.where(self._present, total[np.minimum(self._row, len(total) - 1)], 0.0)
        return np.asarray(everything / rate)


def _updates(world: World, row: Ints, present: Bools) -> tuple[Floats, Floats, npt.NDArray[np.str_]]:
    """Samples that members state, lengths of their updates, and how they lie."""
    peers, shape, rng = world.peers, world.shape, world.rng
    pending = peers.pending[row]
    if shape.local_steps is not None:
        pending = np.minimum(pending, shape.local_steps * shape.batch)
    honest = np.where(present, np.floor(pending / shape.batch) * shape.batch, 0.0)
    lies = np.where(peers.liar[row] & present, world.scenario.liars.kind, "")
    norms = np.sqrt(honest) * np.exp(NORM_SPREAD * rng.standard_normal(row.shape))
    norms = norms * np.where(lies == "long", LIE_LENGTH, 1.0)
    return honest * np.where(lies == "samples", LIE_SAMPLES, 1.0), norms, lies


def _decided(
    world: World,
    groups: Groups,
    scatter_end: Floats,
    decide_end: Floats,
    scattered: Floats,
    heard: Bools,
    lines: _Lines,
) -> tuple[Bools, Floats, Ints]:
    """Whether a group's leader, or the second in order, decides, when everyone knows it, and which of the two it is."""
    peers, members, present = world.peers, groups.members, groups.present
    span = decide_end - scatter_end
    report = 2.0 * lines.delay.max(axis=1)
    alone = present.sum(axis=1) == 1
    silent = (present & ~heard).any(axis=1)
    at = np.where(silent, np.maximum(scattered, scatter_end + LEADER_WAITS * span), scattered + report)
    at = np.where(alone, scattered, at)
    first = heard[:, 0] & (peers.leaves[np.maximum(members[:, 0], 0)] > at)
    middle = scatter_end + TAKE_OVER * span
    has_second = heard[:, 1] if members.shape[1] > 1 else np.zeros(len(members), dtype=bool)
    second_row = np.maximum(members[:, min(1, members.shape[1] - 1)], 0)
    second = ~first & has_second & (peers.leaves[second_row] > middle)
    at = np.where(first, at, middle)
    known = np.where(alone, at, at + report)
    return (first | second) & (known <= decide_end), known, np.where(first | ~second, 0, 1)


def _count_bytes(world: World, groups: Groups, moved: tuple[Floats, Floats], gathers: Bools, passed_on: Floats) -> None:
    """Scatter, and where it came to a decision combine and gather, of everyone who was listed.

    ``moved`` are the shares of both that have left each member in time, ``passed_on`` the bytes of the parts that each
    reduces for others, shape [groups, members].
    """
    peers, present, slices = world.peers, groups.present, groups.slices
    row = np.maximum(groups.members, 0)
    others = present[:, :, None] & present[:, None, :] & ~np.eye(row.shape[1], dtype=bool)
    scattered = np.where(others, slices[:, None, :] * moved[0][:, :, None], 0.0)
    gathered = np.where(others & gathers[:, None, None], (slices * moved[1])[:, :, None], 0.0)
    # Between groups: means to the owners of parts, and one result of each back.
    due = passed_on + np.where(present, groups.parts * (groups.count - 1)[:, None], 0.0)
    left = due * moved[1]
    wanted, there = (
        np.bincount(groups.list_of, weights=amounts.sum(axis=1), minlength=len(groups.seats)) for amounts in (due, left)
    )
    arrived = due * np.divide(there, wanted, out=np.zeros(len(wanted)), where=wanted > 0)[groups.list_of][:, None]
    within = scattered + gathered
    for axis, between, count in ((2, left, peers.send), (1, arrived, peers.receive)):
        amounts = within.sum(axis=axis) + between
        total = np.bincount(row[present], weights=amounts[present], minlength=peers.count).astype(np.float64)
        rows = np.flatnonzero(total)
        count("averaging", rows, total[rows])
