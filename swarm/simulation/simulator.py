"""The simulation of a swarm: rounds follow each other as on the wall clock, and between them volunteers come and go.

Time moves from close to close. Within a round everything has its own moment: newcomers look in the order in which they
come, transfers finish when their last byte is there, a member that leaves before its part has arrived is late. Only
what does not depend on each other is computed at once, over arrays. The same scenario, manifest, size and seed give the
same figures.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from blockswarm.swarm.policy.acceptance import heavier
from blockswarm.swarm.simulation.directory import DirectoryState, directory_state
from blockswarm.swarm.simulation.exchange import Outcome, run_lists
from blockswarm.swarm.simulation.joining import Joining, warm_start
from blockswarm.swarm.simulation.meeting import form_lists
from blockswarm.swarm.simulation.peers import BLOCK, PURPOSES, TRAINING, Bools, Floats, Ints, Peers
from blockswarm.swarm.simulation.scenario import Scenario, check_workers
from blockswarm.swarm.simulation.serving import serve
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.tally import Healing, Tally
from blockswarm.swarm.simulation.transfers import advance_transfers, choose_donors, kept_states, start_fetching
from blockswarm.swarm.simulation.world import TRANSFER_STEPS, Heads, World

DAY_SECONDS = 86_400.0


class Simulation:
    """A simulated swarm.

    Parameters
    ----------
    shape : SwarmShape
        From the manifest.
    scenario : Scenario
        What happens.
    peers : int
        Volunteers there at the beginning; as many arrive as leave, on average.
    hours : float
        Simulated time.
    seed : int
        Of all randomness.
    source : str
        What the scenario is called in errors.

    Raises
    ------
    ScenarioError
        When a block would begin without a worker.
    """

    def __init__(
        self,
        shape: SwarmShape,
        scenario: Scenario,
        *,
        peers: int,
        hours: float,
        seed: int = 0,
        source: str = "scenario",
    ) -> None:
        check_workers(scenario, peers=peers, blocks=shape.blocks, source=source)
        self.shape, self.scenario, self.size, self.hours, self.seed = shape, scenario, peers, hours, seed
        self.rounds = max(1, round(hours * 3600.0 / shape.seconds))
        # Who comes is drawn apart from what happens, so that two policies can be compared on the same volunteers.
        coming, rng = map(np.random.default_rng, np.random.SeedSequence([seed, peers, shape.blocks]).spawn(2))
        self._coming = coming
        rows = Peers(scenario, coming, shape.sample_flops)
        heads = Heads(shape.blocks + 1)
        directory = self._directory(np.zeros(shape.blocks, dtype=np.int64), peers, 0.0)
        self.world = World(scenario, shape, rng, rows, directory, heads)
        self.joining = Joining(self.world, seed)
        self.tally = Tally(shape.blocks)
        if scenario.start.warm:
            first = rows.arrive(np.zeros(peers), warm=True)
            rows.describe(first)
            warm_start(self.world, first)
        else:
            moments = np.sort(coming.random(peers)) * scenario.start.minutes * 60.0
            first = rows.arrive(moments)
            rows.describe(first)
            self.joining.arrive(first)
        sessions = scenario.sessions
        scale = 3600.0 * sessions.median_hours / math.log(2.0) ** (1.0 / sessions.shape)
        mean = math.inf if sessions.endless else scale * math.gamma(1.0 + 1.0 / sessions.shape)
        self._arrivals = peers / mean  # a second, on average
        self._departures = {self._round_at(event.at): event.share for event in scenario.departures}
        self._splits = {self._round_at(event.at): event for event in scenario.partitions}
        self._joins = {
            self._round_at(event.at) + max(1, round(60.0 * event.minutes / shape.seconds))
            for event in scenario.partitions
        }
        self.done = 0

    def run(self) -> Iterator[int]:
        """Simulate round after round; gives the number of rounds done, so that a caller can show it or stop."""
        while self.done < self.rounds:
            self._round(self.done + 1)
            self.done += 1
            yield self.done

    def _round(self, number: int) -> None:
        world, shape, peers = self.world, self.shape, self.world.peers
        begin = (number - 1) * shape.seconds
        times = shape.times(number)
        before = self._other_traffic()
        self._events(number, begin)
        self._arrive(begin)
        # A new view of the directory, as this round's volunteers load it.
        on_record = peers.on_record(begin) & (peers.block >= 0)
        replicas = np.bincount(peers.block[on_record], minlength=shape.blocks)
        alive = peers.alive(begin)
        gone = float(((peers.leaves <= begin) & (peers.leaves > begin - shape.seconds)).sum()) / shape.seconds
        world.directory = self._directory(replicas, int(alive.sum()), gone)
        world.heads_held(begin)
        choose_donors(world, begin)
        self._steps(begin, times.train_end)
        self._train(begin, times.train_end)
        outcome = run_lists(world, times, form_lists(world, times))
        self._settle(outcome, times.close)
        choose_donors(world, times.train_end)
        committed = self._committed(outcome, times.train_end, times.close)
        start_fetching(world, times, committed, self._untold(outcome))
        self._steps(times.train_end, times.close, last=True)
        self._train(times.train_end, times.close)
        self.tally.round(world, outcome, times.close)
        self.tally.served(serve(world, begin, shape.seconds))
        self.joining.move_one(times.close, number)
        self._directory_traffic(alive)
        peers.bytes_before[: len(before)] = (self._other_traffic()[: len(before)] - before) / shape.seconds

    def _other_traffic(self) -> Floats:
        """Bytes that everyone has sent for anything but averaging."""
        sent = self.world.peers.sent
        return np.asarray(sent.sum(axis=1) - sent[:, PURPOSES.index("averaging")])

    def _steps(self, begin: float, end: float, *, last: bool = False) -> None:
        """Newcomers, transfers and a look at the blocks, a few times between ``begin`` and ``end``."""
        share = (end - begin) / self.shape.seconds
        steps = max(1, round(TRANSFER_STEPS * share))
        width = (end - begin) / steps
        for step in range(steps):
            now = begin + step * width
            self.joining.advance(now + width)
            advance_transfers(self.world, now, now + width)
            self.tally.look(self.world, end if last and step == steps - 1 else now + width)

    def _train(self, begin: float, end: float) -> None:
        peers = self.world.peers
        spent = np.clip(np.minimum(end, peers.leaves) - np.maximum(begin, peers.ready), 0.0, end - begin)
        samples = np.where(peers.stage == TRAINING, peers.speed * spent, 0.0)
        peers.pending += samples
        self.tally.trained += float(samples.sum())

    def _committed(self, outcome: Outcome, train_end: float, close: float) -> Floats:
        """When each subject's round committed on each side; its close where it did not."""
        moments = np.full(self.world.heads.version.shape, close)
        done = outcome.committed
        moments[outcome.lists.subject[done], outcome.lists.side[done]] = train_end + outcome.seconds[done]
        return moments

    def _untold(self, outcome: Outcome) -> Bools:
        """Whom no leader tells of a commit, by volunteer and column."""
        world, lists = self.world, outcome.lists
        untold = np.zeros((world.peers.count, 2), dtype=bool)
        for number in np.flatnonzero(outcome.committed):
            subject, side = int(lists.subject[number]), int(lists.side[number])
            column = world.column(subject)
            untold[lists.members[number][lists.present[number]], column] = True
            if not outcome.holds[number, 0]:
                untold[world.rows_of(subject, side, np.ones(world.peers.count, dtype=bool)), column] = True
        return untold

    def _settle(self, outcome: Outcome, close: float) -> None:
        """Give every commit to those who voted for it, and every refused update back to its owner."""
        world, peers, heads, lists = self.world, self.world.peers, self.world.heads, outcome.lists
        for number in range(len(lists.subject)):
            subject, side = int(lists.subject[number]), int(lists.side[number])
            members = lists.members[number][lists.present[number]]
            if not len(members):
                continue
            width = len(members)
            accepted = outcome.weights[number, :width] > 0
            faulty = outcome.faulty[number, :width]
            if accepted.any() or faulty.any():
                world.book(subject, side).note(
                    self.done + 1,
                    [str(row) for row in members[accepted]],
                    dict.fromkeys((str(row) for row in members[faulty]), "norm is too large"),
                )
            if not outcome.committed[number]:
                continue
            kept = kept_states(self.shape.seconds)
            world.leaders.setdefault((subject, side), deque(maxlen=kept)).append(int(members[0]))
            weight = float(outcome.weights[number].sum())
            heads.version[subject, side] += 1
            heads.samples[subject, side] += weight
            heads.last[subject, side] = weight
            column = world.column(subject)
            holds = outcome.holds[number, :width]
            peers.version[members[holds], column] = heads.version[subject, side]
            if column == BLOCK:
                taken = members[accepted & holds]
                kept = members[~accepted & holds]
                settled = outcome.samples[number, :width][accepted & holds]
                peers.pending[taken] = np.maximum(0.0, peers.pending[taken] - settled)
                peers.pending[kept] *= self.shape.carry
                first = taken[np.isinf(peers.first_commit[taken])]
                peers.first_commit[first] = close

    def _arrive(self, begin: float) -> None:
        day = self.scenario.day
        hour = day.start_hour + begin / 3600.0 - day.peak_hour
        rhythm = 1.0 + day.amplitude * math.cos(2.0 * math.pi * hour * 3600.0 / DAY_SECONDS)
        count = int(self._coming.poisson(self._arrivals * rhythm * self.shape.seconds))
        if count:
            moments = begin + np.sort(self._coming.random(count)) * self.shape.seconds
            rows = self.world.peers.arrive(moments)
            if self.world.split:
                self.world.peers.side[rows] = self._coming.random(count) < self._split_share
            self.joining.arrive(rows)

    def _events(self, number: int, begin: float) -> None:
        peers, rng = self.world.peers, self._coming
        if number in self._departures:
            alive = np.flatnonzero(peers.alive(begin))
            rows = rng.choice(alive, size=round(self._departures[number] * len(alive)), replace=False)
            moment = self.shape.times(number).meet_end  # the worst one: lists are signed, parts are on their way
            peers.vanish(rows, moment)
            self.tally.healings.append(Healing(moment, len(rows), set(range(self.shape.blocks))))
        if number in self._splits and not self.world.split:
            self._split_share = self._splits[number].share
            self.world.split = True
            peers.side[:] = rng.random(peers.count) < self._split_share
            for values in (self.world.heads.version, self.world.heads.samples, self.world.heads.last):
                values[:, 1] = values[:, 0]
            self._split_at = self.world.heads.version[:, 0].copy()
        if number in self._joins and self.world.split:
            self._end_of_split()

    def _end_of_split(self) -> None:
        """The heavier line of every subject wins; who has the other one is behind."""
        world, peers, heads = self.world, self.world.peers, self.world.heads
        for subject in range(self.shape.blocks + 1):
            column = world.column(subject)
            digests = [hashlib.sha256(f"{self.seed}.{subject}.{side}".encode()).digest() for side in (0, 1)]
            samples = [int(heads.samples[subject, side]) for side in (0, 1)]
            winner = 0 if heavier(samples[0], digests[0], samples[1], digests[1]) else 1
            newest = int(heads.version[subject].max()) + 1
            self.tally.forked += int(heads.version[subject, 1 - winner] - self._split_at[subject])
            mine = world.rows_of(subject, winner, peers.version[:, column] >= 0)
            current = mine[peers.version[mine, column] == heads.version[subject, winner]]
            others = world.rows_of(subject, 1 - winner, peers.version[:, column] >= 0)
            peers.version[others, column] = np.minimum(peers.version[others, column], newest - 10)
            peers.version[current, column] = newest
            for row_set in (mine, others):
                under_way = row_set[peers.fetching[row_set, column] >= 0]
                peers.fetching[under_way, column] = newest
            heads.version[subject, 0] = newest
            heads.samples[subject, 0] = samples[winner]
        peers.side[:] = 0
        world.split = False
        world.standing.clear()

    def _directory(self, replicas: Ints, nodes: int, departures: float) -> DirectoryState:
        network = self.scenario.network
        return directory_state(
            replicas=replicas,
            nodes=nodes,
            departures=departures,
            up=network.up_mbit.median * 1e6 / 8,
            rtt=network.rtt_ms.median / 1000,
            shards=self.shape.shards,
            round_seconds=self.shape.seconds,
            often=self.scenario.what_if.looks == "often",
        )

    def _directory_traffic(self, alive: Bools) -> None:
        peers, directory, seconds = self.world.peers, self.world.directory, self.shape.seconds
        rows = np.flatnonzero(alive)
        peers.messages[rows] += directory.messages * seconds
        for count in (peers.send, peers.receive):
            count("directory", rows, directory.sent * seconds)

    def _round_at(self, share: float) -> int:
        return min(self.rounds, 1 + int(share * self.rounds))
