"""What a simulation says: figures with percentiles, as plain values and as lines for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.simulation.peers import PURPOSES
from blockswarm.swarm.simulation.simulator import Simulation

PERCENTILES = (5, 25, 50, 75, 95, 99)

LEAST_STAY = 600.0
"""Seconds that a volunteer must have been there for its own rates to count: those of minutes say little."""

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Resources:
    """What the simulation itself took."""

    elapsed_s: float
    max_rss_mb: float


def percentiles(values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float] | None:
    """The usual percentiles of what is finite; ``None`` where nothing is."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return None
    return {
        f"p{share}": _round(value) for share, value in zip(PERCENTILES, np.percentile(finite, PERCENTILES), strict=True)
    }


def report(simulation: Simulation, resources: Resources, *, interrupted: bool = False) -> dict[str, Any]:
    """All figures so far as plain values; ``simulated`` is always true."""
    tally, world, peers = simulation.tally, simulation.world, simulation.world.peers
    now = simulation.done * simulation.shape.seconds
    hours = max(now / 3600.0, 1e-9)
    stayed = np.clip(np.minimum(peers.leaves, now) - peers.joined, 0.0, None)
    newcomers = ~peers.warm & (peers.joined <= now)
    waited = (peers.first_commit - peers.joined)[newcomers]
    reached = np.isfinite(waited)
    success = np.concatenate(tally.success) if tally.success else np.zeros(0)
    latency = np.concatenate(tally.latency) if tally.latency else np.zeros(0)
    bare = tally.gaps + (now - tally.bare_since[~np.isnan(tally.bare_since)]).tolist()
    healing = tally.healings[0] if tally.healings else None
    per_hour = tally.commits / hours
    stays = np.maximum(stayed, 1.0)
    long_enough = stayed >= min(LEAST_STAY, now / 2)
    total_days = max(float(stayed.sum()) / DAY_SECONDS, 1e-9)

    def rates(amounts: npt.NDArray[np.float64]) -> dict[str, float] | None:
        return percentiles((amounts / stays)[long_enough] * 3600.0)

    return {
        "simulated": True,
        "scenario": simulation.scenario.name,
        "seed": simulation.seed,
        "peers": simulation.size,
        "hours": _round(now / 3600.0),
        "rounds": simulation.done,
        "interrupted": interrupted,
        "blocks": simulation.shape.blocks,
        "coverage": _mean(tally.coverage),
        "participation": _ratio(tally.accepted, tally.eligible),
        "listed": _ratio(tally.members, tally.eligible),
        "accepted_of_listed": _ratio(tally.accepted, tally.members),
        "late_of_listed": _ratio(tally.late, tally.members),
        "rounds_per_hour": _round(float(per_hour.mean())),
        "join_to_commit_s": _round(float(np.median(waited[reached]))) if reached.any() else None,
        "joined": int(newcomers.sum()),
        "joined_and_committed": int(reached.sum()),
        "heal_s": None if healing is None or healing.seconds is None else _round(healing.seconds),
        "lost": 0 if healing is None else healing.lost,
        "work_kept": _ratio(tally.certified, tally.trained),
        "tokens_per_hour": _round(tally.certified * simulation.shape.context / hours),
        "states_lost": world.states_lost,
        "downloads_restarted": world.restarted,
        "commits_rolled_back": world.rolled_back,
        "commits_of_lighter_forks": tally.forked,
        "lone_commits": tally.lone,
        "faulty_updates": tally.faulty,
        "weight_of_liars": _ratio(tally.weight_of_liars, tally.certified),
        "client": {
            "requests": tally.requests,
            "followed": len(success),
            "success": _mean(success),
            "latency_s": _round(float(np.median(latency))) if len(latency) else None,
        },
        "directory": {
            "known": _mean(tally.known),
            "answered": _mean(tally.answered),
            "hottest_requests_per_s": _mean(tally.hottest),
        },
        "gb_per_peer_day": {
            purpose: {
                "sent": _round(float(peers.sent[:, index].sum()) / 1e9 / total_days),
                "received": _round(float(peers.received[:, index].sum()) / 1e9 / total_days),
            }
            for index, purpose in enumerate(PURPOSES)
        },
        "percentiles": {
            "volunteers": percentiles(tally.volunteers),
            "participation": percentiles(tally.participation),
            "replicas_of_weakest_block": percentiles(tally.fewest),
            "gap_s": percentiles(bare),
            "rounds_per_hour": percentiles(per_hour),
            "round_s": percentiles(tally.round_seconds),
            "scatter_s": percentiles(tally.scatter_seconds),
            "join_to_commit_s": percentiles(waited),
            "join_to_training_s": percentiles((peers.ready - peers.joined)[newcomers]),
            "client_latency_s": percentiles(latency),
            "dht_messages_per_peer_hour": rates(peers.messages),
            "sent_bytes_per_peer_hour": {name: rates(peers.sent[:, i]) for i, name in enumerate(PURPOSES)},
            "received_bytes_per_peer_hour": {name: rates(peers.received[:, i]) for i, name in enumerate(PURPOSES)},
        },
        "gaps": len(bare),
        "elapsed_s": _round(resources.elapsed_s),
        "max_rss_mb": _round(resources.max_rss_mb),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for people; the first line says that they are simulated."""
    spread, client, directory = figures["percentiles"], figures["client"], figures["directory"]
    joined, reached = figures["joined"], figures["joined_and_committed"]
    weakest = _range(spread["replicas_of_weakest_block"], " replicas")
    text = [
        f"SIMULATED swarm of {figures['peers']:,} volunteers, scenario {figures['scenario']}, seed {figures['seed']}: "
        f"{figures['hours']:g} h, {figures['rounds']:,} rounds, {figures['blocks']} blocks"
        + (" (interrupted)" if figures["interrupted"] else ""),
        f"  coverage          {_share(figures['coverage'])} of blocks held; {figures['gaps']} gaps"
        f"{_range(spread['gap_s'], ' s each')}; weakest block {weakest}",
        f"  participation     {_share(figures['participation'])} accepted; listed {_share(figures['listed'])}, "
        f"late {_share(figures['late_of_listed'])} of the listed",
        f"  committed rounds  {_number(figures['rounds_per_hour'])} an hour and block, "
        f"{_range(spread['round_s'], ' s after the end of training')}",
        f"  work kept         {_share(figures['work_kept'])} of the samples trained, "
        f"{_number(figures['tokens_per_hour'])} tokens an hour",
        f"  join to commit    {_range(spread['join_to_commit_s'], ' s')}; {reached:,} of {joined:,} newcomers did",
        f"  clients           {_share(client['success'])} of {client['requests']:,} answered, "
        f"{_range(spread['client_latency_s'], ' s')}",
        f"  directory         {_range(spread['dht_messages_per_peer_hour'], ' messages a peer and hour')}; "
        f"{_share(directory['answered'])} of requests for records answered in time",
    ]
    if figures["lost"]:
        healed = "not healed" if figures["heal_s"] is None else f"healed after {figures['heal_s']:g} s"
        text.append(f"  loss              {figures['lost']:,} vanished at once, {healed}")
    if figures["states_lost"] or figures["commits_rolled_back"] or figures["commits_of_lighter_forks"]:
        text.append(
            f"  lost work         {figures['states_lost']} states gone with their holders, "
            f"{figures['commits_rolled_back']} commits rolled back, "
            f"{figures['commits_of_lighter_forks']} commits of lighter forks dropped"
        )
    if figures["faulty_updates"]:
        text.append(
            f"  liars             {figures['faulty_updates']:,} updates refused; "
            f"{_share(figures['weight_of_liars'])} of the accepted weight is theirs"
        )
    text.append("  GB a peer and day (sent / received)")
    for purpose, both in figures["gb_per_peer_day"].items():
        text.append(f"    {purpose:<15} {both['sent']:>8.3g} / {both['received']:.3g}")
    text.append(f"  simulated in {figures['elapsed_s']:.1f} s with {figures['max_rss_mb']:,.0f} MB")
    return text


def _range(spread: dict[str, float] | None, unit: str) -> str:
    if spread is None:
        return "" if unit.startswith(" s each") else "none"
    start = " of " if unit.startswith(" s each") else ""
    return f"{start}{_number(spread['p50'])} (p5 {_number(spread['p5'])}, p95 {_number(spread['p95'])}){unit}"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.3g} %"


def _ratio(part: float, whole: float) -> float | None:
    return _round(part / whole) if whole else None


def _mean(values: Sequence[float] | npt.NDArray[np.float64]) -> float | None:
    return _round(float(np.mean(values))) if len(values) else None


def _round(value: float) -> float:
    """Six digits: more would claim a precision that a simulation has not."""
    value = float(value)
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.6g}")
