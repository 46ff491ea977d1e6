"""What becomes of the lists of one simulated round: scatter, decide, gather and commit, for all lists at once.

Times are those of docs/protocol.md §6: a part moves as fast as the slower of two lines, each of which carries all that
its owner sends or receives in that phase. Arrays have shape [lists, members]; of pairs [lists, from, to].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.acceptance import quorum
from blockswarm.swarm.policy.acceptance_arrays import decide_all
from blockswarm.swarm.policy.grouping import part_bounds
from blockswarm.swarm.policy.phases import RoundTimes
from blockswarm.swarm.simulation.meeting import Lists
from blockswarm.swarm.simulation.peers import Bools, Floats
from blockswarm.swarm.simulation.world import World

NORM_SPREAD = 0.15
"""Spread of the logarithm of updates' lengths around the square root of their samples. Assumed."""

LIE_LENGTH = 30.0
"""How many times too long the update of a ``long`` liar is."""

LIE_SAMPLES = 10.0
"""How many times its samples a ``samples`` liar claims."""

LEADER_WAITS, TAKE_OVER = 0.4, 0.5
"""Shares of the decide phase after which a leader decides without every report, and the second in its place; of the
commit phase, after which the second proposes (``peer/allreduce.py``)."""

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
    peers, present = world.peers, lists.present
    row = np.maximum(lists.members, 0)
    count = present.sum(axis=1)
    reduces = present & ~peers.hidden[row]
    alone = count == 1
    reduces |= present & alone[:, None]
    parts = _parts(world, lists, reduces)  # bytes of the part that each member reduces
    lines = _Lines(world, lists, row, present)
    samples, norms, lies = _updates(world, row, present)

    whole = parts.sum(axis=1, keepdims=True)
    needs = np.where(present & ~alone[:, None], whole - parts, 0.0)
    collects = parts * np.maximum(count - 1, 0)[:, None]
    begin = lists.signed
    arrival = begin[:, None, None] + lines.times(needs, collects)  # of i's part at reducer j
    pairs = present[:, :, None] & reduces[:, None, :]
    missing = (arrival > times.scatter_end) | (peers.leaves[row][:, :, None] < arrival)
    missing |= (peers.hidden[row][:, :, None] & peers.hidden[row][:, None, :]) | (lies == "silent")[:, :, None]
    missing &= ~np.eye(row.shape[1], dtype=bool)
    missing &= pairs
    all_in = np.asarray(~missing.any(axis=(1, 2)))
    last = np.where(pairs & ~missing, arrival, begin[:, None, None]).max(axis=(1, 2))
    scattered = np.where(all_in, last, times.scatter_end)
    # What a member says waits behind what it is still sending: until then it has no voice.
    heard = present & (begin[:, None] + lines.sending(needs) <= times.scatter_end)
    reports = reduces & heard & (peers.leaves[row] > scattered[:, None] + lines.delay)
    late = present & (missing & reports[:, None, :]).any(axis=2)
    faulty = present & np.asarray(lies == "nan")

    decided, decided_at, rank = _decided(world, times, lists, scattered, heard, lines)
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

    back = decided_at[:, None, None] + lines.times(collects, needs)  # of reducer i's mean at member j
    own = np.eye(row.shape[1], dtype=bool)[None]
    back = np.where(own, decided_at[:, None, None], back)
    lost = (back > times.gather_end) | (peers.leaves[row][:, :, None] < back)
    # Who decided proposes the outcome: the parts that it has; the second in order waits for the first before it does.
    included = reports & ~lost[np.arange(len(rank)), :, rank]
    proposed = np.where(rank == 0, 0.0, times.gather_end + TAKE_OVER * (times.close - times.gather_end))
    pairs = included[:, :, None] & present[:, None, :]
    # A member that lacks a part fetches it by its hash from others until the close; hidden pairs do the same.
    ready = np.maximum(np.where(pairs, back, 0.0).max(axis=1), proposed[:, None]) + 2.0 * lines.delay
    holds = (
        present & (heard | (np.arange(row.shape[1]) > 0)) & (ready < times.close) & (peers.leaves[row] > times.close)
    )
    votes = holds.sum(axis=1)
    committed = decided & included.any(axis=1) & (verdicts.weights.sum(axis=1) > 0)
    committed &= votes >= np.array([quorum(int(members)) for members in count])
    needed = np.sort(np.where(holds, ready, np.inf), axis=1)
    voted = needed[np.arange(len(count)), np.minimum(count // 2, row.shape[1] - 1)]
    lasting = times.scatter_end - begin, np.maximum(times.gather_end - decided_at, 0.0)
    _count_bytes(world, row, present, parts, lines.moved(needs, collects, lasting), decided)
    return Outcome(
        lists=lists,
        samples=samples,
        weights=verdicts.weights * committed[:, None],
        late=late,
        faulty=faulty | verdicts.too_long,
        committed=committed,
        holds=holds & committed[:, None],
        seconds=np.where(committed, voted - times.train_end, np.nan),
        scatter_seconds=scattered - begin,
    )


class _Lines:
    """What the lines of a round's members can do, given that both subjects of a peer share them."""

    def __init__(self, world: World, lists: Lists, row: npt.NDArray[np.int64], present: Bools) -> None:
        peers = world.peers
        busy = np.minimum(BUSY_AT_MOST, peers.bytes_before[row] / peers.up[row])
        self.delay = np.where(present, peers.delay[row], 0.0)
        self._up = peers.up[row] * (1.0 - busy)
        self._down = peers.down[row]
        self._row, self._present = row, present

    def times(self, sending: Floats, receiving: Floats) -> Floats:
        """Seconds until what is sent from one to another has arrived, shape [lists, from, to]."""
        out = self._seconds(sending, self._up)
        into = self._seconds(receiving, self._down)
        travel = self.delay[:, :, None] + self.delay[:, None, :]
        return np.asarray(np.maximum(out[:, :, None], into[:, None, :]) + travel)

    def sending(self, amounts: Floats) -> Floats:
        """Seconds until what members send has left them."""
        return self._seconds(amounts, self._up)

    def moved(self, needs: Floats, collects: Floats, lasting: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Which share of what a member sends has left by the end of scatter, and of gather: then sending is cut off.

        ``lasting`` are the seconds of both phases, shape [lists].
        """
        shares = []
        for sending, seconds in zip((needs, collects), lasting, strict=True):
            wanted = np.maximum(self._seconds(sending, self._up), 1e-9)
            shares.append(np.minimum(1.0, seconds[:, None] / wanted))
        return shares[0], shares[1]

    def _seconds(self, amounts: Floats, rate: Floats) -> Floats:
        # A peer that is in two lists, of its block and of the embedding, moves the parts of both at once.
        total = np.bincount(self._row[self._present], weights=amounts[self._present], minlength=1)
        everything = np.where(self._present, total[np.minimum(self._row, len(total) - 1)], 0.0)
        return np.asarray(everything / rate)


def _parts(world: World, lists: Lists, reduces: Bools) -> Floats:
    parts = np.zeros(reduces.shape)
    for number, subject in enumerate(lists.subject.tolist()):
        column = world.column(subject)
        values = world.shape.values[column]
        members = int(lists.present[number].sum())
        if members and reduces[number].any():
            bounds = part_bounds(values, reduces[number, :members].astype(float).tolist())
            share = world.shape.update_bytes[column] / values
            parts[number, :members] = [share * (end - start) for start, end in bounds]
    return parts


def _updates(world: World, row: npt.NDArray[np.int64], present: Bools) -> tuple[Floats, Floats, npt.NDArray[np.str_]]:
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
    world: World, times: RoundTimes, lists: Lists, scattered: Floats, heard: Bools, lines: _Lines
) -> tuple[Bools, Floats, npt.NDArray[np.int64]]:
    """Whether a list's leader, or the second in order, decides, when everyone knows it, and which of the two it is."""
    peers, members = world.peers, lists.members
    span = times.decide_end - times.scatter_end
    report = 2.0 * lines.delay.max(axis=1)
    alone = lists.present.sum(axis=1) == 1
    silent = (lists.present & ~heard).any(axis=1)
    at = np.where(silent, np.maximum(scattered, times.scatter_end + LEADER_WAITS * span), scattered + report)
    at = np.where(alone, scattered, at)
    first = heard[:, 0] & (peers.leaves[np.maximum(members[:, 0], 0)] > at)
    middle = times.scatter_end + TAKE_OVER * span
    has_second = heard[:, 1] if members.shape[1] > 1 else np.zeros(len(members), dtype=bool)
    second_row = np.maximum(members[:, min(1, members.shape[1] - 1)], 0)
    second = ~first & has_second & (peers.leaves[second_row] > middle)
    at = np.where(first, at, middle)
    known = np.where(alone, at, at + report)
    return (first | second) & (known <= times.decide_end), known, np.where(first | ~second, 0, 1)


def _count_bytes(
    world: World,
    row: npt.NDArray[np.int64],
    present: Bools,
    parts: Floats,
    moved: tuple[Floats, Floats],
    decided: Bools,
) -> None:
    """Scatter, and where it came to a decision gather, of everyone who was listed."""
    peers = world.peers
    others = present[:, :, None] & present[:, None, :] & ~np.eye(row.shape[1], dtype=bool)
    scattered = np.where(others, parts[:, None, :] * moved[0][:, :, None], 0.0)
    gathered = np.where(others & decided[:, None, None], (parts * moved[1])[:, :, None], 0.0)
    for axis, count in ((2, peers.send), (1, peers.receive)):
        amounts = (scattered + gathered).sum(axis=axis)
        total = np.bincount(row[present], weights=amounts[present], minlength=peers.count).astype(np.float64)
        rows = np.flatnonzero(total)
        count("averaging", rows, total[rows])
