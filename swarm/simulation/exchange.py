"""What becomes of the lists of one simulated round: scatter, decide, gather and commit, for all lists at once.

Times are those of docs/protocol.md §6: a part moves as fast as the slower of two lines, each of which carries all that
its owner sends or receives in that phase. Arrays have shape [groups, members]; of pairs [groups, from, to].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.acceptance_arrays import Verdicts, decide_all
from blockswarm.swarm.policy.phases import RoundTimes, with_combining
from blockswarm.swarm.simulation.combining import LEADER_WAITS, TAKE_OVER, Members, combine
from blockswarm.swarm.simulation.lines import Lines
from blockswarm.swarm.simulation.meeting import Lists
from blockswarm.swarm.simulation.peers import Bools, Floats, Ints
from blockswarm.swarm.simulation.seating import deal_out
from blockswarm.swarm.simulation.world import World

NORM_SPREAD = 0.15
"""Spread of the logarithm of updates' lengths around the square root of their samples. Assumed."""

LIE_LENGTH = 30.0
"""How many times too long the update of a ``long`` liar is."""

LIE_SAMPLES = 10.0
"""How many times its samples a ``samples`` liar claims."""


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
    round_ = _Round(world, times, lists)
    phase = round_.scatter()
    verdicts, decision = round_.judge(phase, round_.decide(phase))
    found = round_.combine(phase, verdicts, decision)
    round_.count_bytes(phase, decision)
    return found


@dataclass(frozen=True)
class _Scatter:
    """What came of the scatter phase; arrays of shape [groups] or [groups, members]."""

    seconds: Floats
    """When the last part that came was there, simulated seconds since the beginning."""
    heard: Bools
    """Who can be heard at its end: what a member says waits behind what it is still sending."""
    reports: Bools
    """Reducers whose reports come."""
    late: Bools
    faulty: Bools
    needs: Floats
    """Bytes that each member sends."""


@dataclass(frozen=True)
class _Decision:
    """Whether groups decided, when everyone knew it, and whether the leader (0) or the second (1) did; [groups]."""

    made: Bools
    at: Floats
    rank: Ints


class _Round:
    """The lists of a round, its lines, and what its members say; phase after phase."""

    def __init__(self, world: World, times: RoundTimes, lists: Lists) -> None:
        self.world, self.times, self.lists = world, times, lists
        self.groups = groups = deal_out(world, lists)
        self.present = groups.present
        self.row = np.maximum(groups.members, 0)
        self.single = groups.count == 1
        self.several = with_combining(times, 2)
        self.lines = Lines(world, self.row, self.present)
        self.samples, self.norms, self.lies = _updates(world, self.row, self.present)
        self.size = self.present.sum(axis=1)
        self.begin = lists.signed[groups.list_of]
        self.scatter_end = self._ends("scatter_end")
        self.decide_end = self._ends("decide_end")
        self.passed_on = np.where(self.present, groups.slices - groups.parts, 0.0)
        """Bytes of the parts that each member reduces for others."""
        mates, others = np.maximum(self.size - 1, 0)[:, None], (groups.count - 1)[:, None]
        whole = groups.whole()[:, None]
        self.sums = self.passed_on, groups.parts * others
        """Bytes between groups: sent, and received."""
        self.results = (
            groups.parts * (others + mates) + self.passed_on * mates,
            np.where(self.present, whole - groups.parts, 0.0),
        )
        """Bytes of results: sent, and received."""

    def _ends(self, phase: str) -> Floats:
        return np.asarray(np.where(self.single, getattr(self.times, phase), getattr(self.several, phase)))

    def scatter(self) -> _Scatter:
        """Who has sent its parts to all reducers in time."""
        peers, groups, present, row = self.world.peers, self.groups, self.present, self.row
        reduces = groups.slices > 0
        alone = self.single & (self.size == 1)
        whole = groups.slices.sum(axis=1, keepdims=True)
        needs = np.where(present & ~alone[:, None], whole - groups.slices, 0.0)
        collects = groups.slices * np.maximum(self.size - 1, 0)[:, None]
        begin, end = self.begin, self.scatter_end
        arrival = begin[:, None, None] + self.lines.times(needs, collects)  # of i's slice at reducer j
        pairs = present[:, :, None] & reduces[:, None, :]
        missing = (arrival > end[:, None, None]) | (peers.leaves[row][:, :, None] < arrival)
        missing |= (peers.hidden[row][:, :, None] & peers.hidden[row][:, None, :]) | (self.lies == "silent")[:, :, None]
        missing &= ~np.eye(row.shape[1], dtype=bool)
        missing &= pairs
        last = np.where(pairs & ~missing, arrival, begin[:, None, None]).max(axis=(1, 2))
        scattered = np.where(~missing.any(axis=(1, 2)), last, end)
        heard = present & (begin[:, None] + self.lines.seconds(needs, needs)[0] <= end[:, None])
        reports = reduces & heard & (peers.leaves[row] > scattered[:, None] + self.lines.delay)
        late = present & (missing & reports[:, None, :]).any(axis=2)
        return _Scatter(scattered, heard, reports, late, present & np.asarray(self.lies == "nan"), needs)

    def decide(self, phase: _Scatter) -> _Decision:
        """Whether a group's leader, or the second in order, decides, when everyone knows it, and which of the two."""
        leaves, members, heard = self.world.peers.leaves, self.groups.members, phase.heard
        span = self.decide_end - self.scatter_end
        report = 2.0 * self.lines.delay.max(axis=1)
        alone = self.size == 1
        silent = (self.present & ~heard).any(axis=1)
        waited = np.maximum(phase.seconds, self.scatter_end + LEADER_WAITS * span)
        at = np.where(silent, waited, phase.seconds + report)
        at = np.where(alone, phase.seconds, at)
        first = heard[:, 0] & (leaves[self.row[:, 0]] > at)
        middle = self.scatter_end + TAKE_OVER * span
        has_second = heard[:, 1] if members.shape[1] > 1 else np.zeros(len(members), dtype=bool)
        second = ~first & has_second & (leaves[self.row[:, min(1, members.shape[1] - 1)]] > middle)
        at = np.where(first, at, middle)
        known = np.where(alone, at, at + report)
        return _Decision((first | second) & (known <= self.decide_end), known, np.where(first | ~second, 0, 1))

    def judge(self, phase: _Scatter, decision: _Decision) -> tuple[Verdicts, _Decision]:
        """Whose updates are accepted at which weight, and which decisions accept any."""
        shape = self.world.shape
        sound = self.present & ~phase.late & ~phase.faulty & np.any(phase.reports, axis=1, keepdims=True)
        verdicts = decide_all(
            self.samples,
            self.norms,
            sound & decision.made[:, None],
            max_norm_ratio=shape.max_norm_ratio,
            max_weight_ratio=shape.max_weight_ratio,
            robust=shape.robust,
            clip_ratio=shape.clip_ratio,
        )
        return verdicts, replace(decision, made=decision.made & (verdicts.weights.sum(axis=1) > 0))

    def combine(self, phase: _Scatter, verdicts: Verdicts, decision: _Decision) -> Outcome:
        """Means of groups become the list's, and its members vote."""
        groups, lists = self.groups, self.lists
        shape = lists.members.shape
        found = Outcome(
            lists=lists,
            samples=np.zeros(shape),
            weights=np.zeros(shape),
            late=np.zeros(shape, dtype=bool),
            faulty=np.zeros(shape, dtype=bool),
            committed=np.zeros(len(lists.subject), dtype=bool),
            holds=np.zeros(shape, dtype=bool),
            seconds=np.full(len(lists.subject), np.nan),
            scatter_seconds=np.zeros(len(lists.subject)),
        )
        seconds = self.lines.seconds(*self.sums), self.lines.seconds(*self.results)
        for number, seats in enumerate(groups.seats):
            mine, at_row, at_column = groups.of(number)
            if not len(mine):
                continue
            where = at_row, at_column
            times = self.times if seats.count == 1 else self.several
            members = self._members(where, mine, seats.count, phase, decision, seconds)
            combined = combine(members, seats, times)
            width = len(at_row)
            found.samples[number, :width] = self.samples[where]
            found.late[number, :width] = phase.late[where]
            found.faulty[number, :width] = (phase.faulty | verdicts.too_long)[where]
            found.committed[number] = combined.committed
            found.scatter_seconds[number] = (phase.seconds - self.begin)[mine].max()
            if combined.committed:
                found.holds[number, :width] = combined.holds
                found.weights[number, :width] = verdicts.weights[where] * combined.counted[seats.group_of]
                found.seconds[number] = combined.moment - self.times.train_end
        return found

    def _members(
        self,
        where: tuple[Ints, Ints],
        mine: Ints,
        count: int,
        phase: _Scatter,
        decision: _Decision,
        seconds: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    ) -> Members:
        (sums_out, sums_in), (results_out, results_in) = seconds
        leaves, heard = self.world.peers.leaves[self.row[where]], phase.heard[where]
        # With several groups the first of the list proposes, or the second in its place.
        root_gone = not heard[0] or leaves[0] <= self.several.gather_end
        return Members(
            parts=self.groups.parts[where],
            up=self.lines.up[where],
            down=self.lines.down[where],
            delay=self.lines.delay[where],
            leaves=leaves,
            heard=heard,
            reported=phase.reports[where],
            sums_out=sums_out[where],
            sums_in=sums_in[where],
            results_out=results_out[where],
            results_in=results_in[where],
            decided=decision.made[mine],
            decided_at=decision.at[mine],
            proposer=int(decision.rank[mine[0]] if count == 1 else root_gone),
        )

    def count_bytes(self, phase: _Scatter, decision: _Decision) -> None:
        """Count scatter, and after a decision combine and gather, as far as lines carried them in time."""
        peers, groups, present, slices = self.world.peers, self.groups, self.present, self.groups.slices
        in_scatter = self.lines.moved(phase.needs, self.scatter_end - self.begin)
        in_gather = self.lines.moved(self.results[0], self._ends("gather_end") - decision.at)
        gathers = decision.made | ~self.single
        others = present[:, :, None] & present[:, None, :] & ~np.eye(present.shape[1], dtype=bool)
        scattered = np.where(others, slices[:, None, :] * in_scatter[:, :, None], 0.0)
        gathered = np.where(others & gathers[:, None, None], (slices * in_gather)[:, :, None], 0.0)
        # Between groups: means to the owners of parts, and one result of each back.
        due = self.passed_on + np.where(present, self.sums[1], 0.0)
        left = due * in_gather
        wanted, there = (
            np.bincount(groups.list_of, weights=amounts.sum(axis=1), minlength=len(groups.seats))
            for amounts in (due, left)
        )
        came = np.divide(there, wanted, out=np.zeros(len(wanted)), where=wanted > 0)
        arrived = due * came[groups.list_of][:, None]
        within = scattered + gathered
        for axis, between, count in ((2, left, peers.send), (1, arrived, peers.receive)):
            amounts = within.sum(axis=axis) + between
            total = np.bincount(self.row[present], weights=amounts[present], minlength=peers.count).astype(np.float64)
            rows = np.flatnonzero(total)
            count("averaging", rows, total[rows])


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
