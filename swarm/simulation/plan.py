"""Advice for a swarm to be: round length, group size and replicas, tried out in short simulations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockswarm.errors import UsageError
from blockswarm.swarm.errors import SwarmError
from blockswarm.swarm.policy.phases import default_phases
from blockswarm.swarm.signed import MAX_MEMBERS
from blockswarm.swarm.simulation.directory import KEY_RECORDS
from blockswarm.swarm.simulation.joining import LEARNER_SECONDS, START_SECONDS
from blockswarm.swarm.simulation.peers import BLOCK, RECORD_SECONDS
from blockswarm.swarm.simulation.report import Resources, report
from blockswarm.swarm.simulation.scenario import Scenario
from blockswarm.swarm.simulation.shape import SwarmShape
from blockswarm.swarm.simulation.simulator import Simulation

ROUNDS = 40
"""Simulated rounds of each candidate."""

LENGTHS = (5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
"""Round lengths that are considered, s."""

TRIED = 4
"""Round lengths that are simulated, from the shortest one that fits."""

GROUPS = (4, 8, 16, 32, 64, 128, 256)
"""Group sizes that are considered; a manifest allows 256."""

USUAL_GROUP = 16
"""Where several sizes are as good, the one nearest to this is taken."""

AS_GOOD = 0.02
"""Participation that a longer round must add to be worth it; groups that differ by less are as good."""

SLOW_LINES = -1.2816
"""Phases reckon with the line that nine of ten volunteers exceed: the tenth percentile of a normal distribution."""

LATE_LIMIT, ANSWERED_LIMIT, STEP_LIMIT = 0.1, 0.5, 0.5
"""Where late members, the directory, or the time of a step count as what limits a swarm."""


class PlanError(SwarmError, UsageError):
    """No advice can be given for what was asked."""


@dataclass(frozen=True)
class Plan:
    """Advice, and what to expect if it is followed. All expectations are simulated."""

    peers: int
    blocks: int
    round_seconds: float
    phases: dict[str, float]
    phase_bandwidth: float
    """Bytes/s that the phases reckon with: nine of ten volunteers have it."""
    group_size: int
    replicas: int
    """Replicas that a block needs for the coverage that is wanted."""
    replicas_there: float
    """Replicas that it has on average."""
    coverage_target: float
    loss: float
    expected: dict[str, Any]
    """The figures of the last simulation (`report`)."""
    hours: float
    """Until each block has been trained on ``tokens`` bytes."""
    tokens: float
    limits: tuple[str, ...]
    """What holds the swarm back, the most important first."""
    tried: tuple[dict[str, float], ...]
    """Every candidate with its participation and tokens an hour."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        traffic = self.expected["gb_per_peer_day"]
        return {
            "simulated": True,
            "peers": self.peers,
            "blocks": self.blocks,
            "round_seconds": self.round_seconds,
            "phases": self.phases,
            "phase_bandwidth_mbit": round(self.phase_bandwidth * 8 / 1e6, 3),
            "group_size": self.group_size,
            "replicas_per_block": self.replicas,
            "replicas_there": self.replicas_there,
            "coverage_target": self.coverage_target,
            "loss": self.loss,
            "participation": self.expected["participation"],
            "coverage": self.expected["coverage"],
            "work_kept": self.expected["work_kept"],
            "tokens_per_hour": self.expected["tokens_per_hour"],
            "tokens": self.tokens,
            "hours": self.hours if math.isfinite(self.hours) else None,
            "gb_per_peer_day": {
                "sent": round(sum(both["sent"] for both in traffic.values()), 4),
                "received": round(sum(both["received"] for both in traffic.values()), 4),
                "by_purpose": traffic,
            },
            "limits": list(self.limits),
            "tried": list(self.tried),
        }

    def lines(self) -> list[str]:
        """The advice for people; the first line says that it is simulated."""
        values, reckoned = self.to_json(), self.phase_bandwidth * 8 / 1e6
        traffic, share = values["gb_per_peer_day"], values["participation"] or 0.0
        phases = ", ".join(f"{name} {seconds:g}" for name, seconds in self.phases.items())
        needed = self.replicas * self.blocks
        enough = "enough" if self.peers >= needed else f"too few: {needed:,} volunteers would do"
        hours = "never" if not math.isfinite(self.hours) else f"{self.hours:,.3g} hours"
        return [
            f"Plan for {self.peers:,} volunteers and {self.blocks} blocks (from SIMULATED rounds)",
            f"  round length   {self.round_seconds:g} s ({phases} s; for lines of {reckoned:.3g} Mbit/s)",
            f"  group size     {self.group_size}",
            f"  replicas       {self.replicas} a block for a coverage of {self.coverage_target:g} when "
            f"{100 * self.loss:g} % vanish at once; there are {self.replicas_there:.3g}, {enough}",
            f"  participation  {100 * share:.3g} %; {100 * (values['work_kept'] or 0.0):.3g} % of the work gets in",
            f"  traffic        {traffic['sent']:.3g} GB sent, {traffic['received']:.3g} GB received a peer and day",
            f"  {self.tokens:,.3g} tokens for each block take {hours}",
            *(f"  limit: {limit}" for limit in self.limits),
        ]


def make_plan(
    shape: SwarmShape,
    scenario: Scenario,
    *,
    peers: int,
    bandwidth: float | None = None,
    coverage: float = 0.999,
    loss: float = 0.3,
    tokens: float = 1e9,
    seed: int = 0,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Plan:
    """Try round lengths, then group sizes, and say what to expect.

    Parameters
    ----------
    shape, scenario
        The manifest's part and the volunteers.
    peers : int
        Volunteers at a time.
    bandwidth : float, optional
        Upload of the median volunteer, bytes/s, instead of the scenario's.
    coverage : float
        Share of blocks that must be held right after a loss, below 1.
    loss : float
        Share of volunteers that vanish at once.
    tokens : float
        Bytes that each block is to be trained on.
    seed : int
        Of the simulations.
    told : callable
        Called with the number of simulations done and their most.

    Raises
    ------
    PlanError
        When not even the longest round holds an update.
    ScenarioError
        When there are fewer volunteers than blocks.
    """
    network = scenario.network
    if bandwidth is not None:
        up = network.up_mbit.model_copy(update={"median": bandwidth * 8 / 1e6})
        network = network.model_copy(update={"up_mbit": up})
        scenario = scenario.model_copy(update={"network": network})
    reckoned = network.up_mbit.median * 1e6 / 8 * math.exp(SLOW_LINES * network.up_mbit.spread)
    lengths = [seconds for seconds in LENGTHS if _fits(shape, seconds, reckoned)][:TRIED]
    if not lengths:
        size = sum(shape.update_bytes) / 1e6
        raise PlanError(
            f"no round of up to {LENGTHS[-1]:g} s holds an update of {size:,.1f} MB over lines of "
            f"{reckoned * 8 / 1e6:.3g} Mbit/s: take a smaller model or stronger compression"
        )
    there = peers / shape.blocks
    groups = [size for size in GROUPS if size <= 2 * max(there, 2.0)] or [GROUPS[0]]
    groups = groups[-TRIED:]
    total = len(lengths) + len(groups)
    tried: list[dict[str, float]] = []

    def attempt(seconds: float, group: int) -> dict[str, Any]:
        changed = dataclasses.replace(
            shape,
            seconds=seconds,
            lengths=default_phases(seconds, sum(shape.update_bytes), reckoned),
            group_size=group,
        )
        simulation = Simulation(
            changed, scenario, peers=peers, hours=ROUNDS * seconds / 3600.0, seed=seed, source="plan"
        )
        for _ in simulation.run():
            pass
        figures = report(simulation, Resources(0.0, 0.0))
        tried.append(
            {
                "round_seconds": seconds,
                "group_size": group,
                "participation": figures["participation"] or 0.0,
                "tokens_per_hour": figures["tokens_per_hour"],
            }
        )
        told(len(tried), total)
        return figures

    widest = groups[-1]
    by_length = {seconds: attempt(seconds, widest) for seconds in lengths}
    seconds = _shortest_as_good({key: value["participation"] or 0.0 for key, value in by_length.items()})
    by_group = {group: by_length[seconds] if group == widest else attempt(seconds, group) for group in groups}
    group = _usual_as_good({key: value["participation"] or 0.0 for key, value in by_group.items()})
    expected = by_group[group]
    told(total, total)
    replicas = replicas_for(scenario, coverage=coverage, loss=loss, fetch_seconds=_fetch_seconds(shape, scenario))
    speed = expected["tokens_per_hour"] / shape.blocks
    return Plan(
        peers=peers,
        blocks=shape.blocks,
        round_seconds=seconds,
        phases=dataclasses.asdict(default_phases(seconds, sum(shape.update_bytes), reckoned)),
        phase_bandwidth=reckoned,
        group_size=group,
        replicas=replicas,
        replicas_there=there,
        coverage_target=coverage,
        loss=loss,
        expected=expected,
        hours=tokens / speed if speed > 0 else math.inf,
        tokens=tokens,
        limits=_limits(shape, scenario, expected, seconds, replicas, there, lengths[0]),
        tried=tuple(tried),
    )


def replicas_for(scenario: Scenario, *, coverage: float, loss: float, fetch_seconds: float) -> int:
    """Replicas with which a block outlives a loss with probability ``coverage``.

    Each replica is gone with the loss, or leaves by itself before somebody has noticed and taken its place: a record's
    life, a newcomer's start and the transfer of a state. Losses of replicas count as independent.
    """
    sessions = scenario.sessions
    scale = 3600.0 * sessions.median_hours / math.log(2.0) ** (1.0 / sessions.shape)
    mean = scale * math.gamma(1.0 + 1.0 / sessions.shape)
    window = RECORD_SECONDS + START_SECONDS + LEARNER_SECONDS + fetch_seconds
    gone = loss + (1.0 - loss) * (1.0 - math.exp(-window / mean))
    if gone <= 0.0:
        return 1
    return max(1, math.ceil(math.log(1.0 - coverage) / math.log(gone) - 1e-9))


def _fits(shape: SwarmShape, seconds: float, bandwidth: float) -> bool:
    try:
        default_phases(seconds, sum(shape.update_bytes), bandwidth)
    except ValueError:
        return False
    return True


def _shortest_as_good(participation: dict[float, float]) -> float:
    best = max(participation.values())
    return min(key for key, value in participation.items() if value >= best - AS_GOOD)


def _usual_as_good(participation: dict[int, float]) -> int:
    """Groups do not limit who takes part: those around the usual size keep robust means sharp and connections few."""
    best = max(participation.values())
    good = [size for size, value in participation.items() if value >= best - AS_GOOD]
    return min(good, key=lambda size: abs(math.log2(size / USUAL_GROUP)))


def _fetch_seconds(shape: SwarmShape, scenario: Scenario) -> float:
    return sum(shape.state_bytes) / (scenario.network.down_mbit.median * 1e6 / 8)


def _limits(
    shape: SwarmShape,
    scenario: Scenario,
    expected: dict[str, Any],
    seconds: float,
    replicas: int,
    there: float,
    shortest: float,
) -> tuple[str, ...]:
    found = []
    if there < replicas:
        found.append(f"volunteers: {there:.3g} replicas a block where the coverage needs {replicas}")
    if there > MAX_MEMBERS:
        found.append(
            f"list: {MAX_MEMBERS} of a block's {there:,.4g} replicas take part in a round; more blocks would use them"
        )
    if there > KEY_RECORDS * shape.shards:
        found.append(
            f"directory: a key holds {KEY_RECORDS} records of {there:,.4g} replicas, and newcomers misjudge blocks: "
            f"set limits.directory_shards to {math.ceil(2 * there / KEY_RECORDS)}"
        )
    answered = expected["directory"]["answered"]
    if answered is not None and answered < ANSWERED_LIMIT:
        found.append(
            f"directory: its nodes answer {100 * answered:.2g} % of the requests for records in time, for everybody "
            "reads every block's records again and again"
        )
    speed = scenario.compute.samples_per_second or scenario.compute.gflops.median * 1e9 / shape.sample_flops
    if shape.batch / speed > STEP_LIMIT * seconds:
        found.append(
            f"compute: a step takes the median volunteer {shape.batch / speed:.3g} s of a round of {seconds:g} s"
        )
    if (expected["late_of_listed"] or 0.0) > LATE_LIMIT:
        found.append(f"lines: {100 * expected['late_of_listed']:.2g} % of the listed are too late with an update")
    if shortest > LENGTHS[0]:
        size = shape.update_bytes[BLOCK] / 1e6
        found.append(f"uplink: an update of {size:.3g} MB allows no round shorter than {shortest:g} s")
    return tuple(found) or ("nothing in particular: more volunteers make it faster",)
