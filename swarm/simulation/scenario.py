"""What happens to a simulated swarm: who comes, with what, for how long, and what goes wrong.

A scenario is data: TOML with the sections below, every key optional, unknown ones refused. What a key is by default is
stated with its source; "assumed" means that nobody measured it for a swarm like this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from blockswarm.swarm.simulation.parts import AsTuple, Part, Positive, ScenarioError, Share, part_from_file, read_part

LiarKind = Literal["long", "nan", "samples", "silent"]


Hours = Annotated[float, Field(ge=0, le=1e5)]


class LogNormal(Part):
    """A quantity that is log-normal over volunteers."""

    median: Positive
    spread: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Standard deviation of the natural logarithm: with 0.7 one in six has less than half of the median."""


class Sessions(Part):
    """How long volunteers stay: Weibull, many short sessions and a few very long ones."""

    median_hours: Positive = 3.0
    """Assumed: between file sharing (minutes to an hour, Stutzbach and Rejaie 2006) and volunteer computing (days)."""
    shape: Annotated[float, Field(ge=0.2, le=5)] = 0.55
    """0.34 to 0.59 were fitted by Stutzbach and Rejaie, "Understanding churn in peer-to-peer networks", IMC 2006."""
    endless: bool = False
    """Nobody comes or leaves but by the events of the scenario."""
    goodbye: Share = 0.7
    """Share that leaves with a goodbye; of the others the directory learns when their record expires. Assumed."""


class Network(Part):
    """Lines of volunteers."""

    up_mbit: LogNormal = LogNormal(median=20.0, spread=0.8)
    """Upload, Mbit/s; the median is what manifests reckon with (``swarm/manifest.py``), the spread is assumed."""
    down_mbit: LogNormal = LogNormal(median=100.0, spread=0.8)
    """Download, Mbit/s; assumed."""
    rtt_ms: LogNormal = LogNormal(median=80.0, spread=0.5)
    """Round trip between two volunteers, ms; 80 ms is what phase lengths reckon with (``policy/phases.py``)."""


class Nat(Part):
    """Volunteers that nobody can dial."""

    share: Share = 0.3
    """Assumed."""
    relayed: Share = 0.8
    """Share of them that is reached through a relay; two that are not cannot meet. Assumed."""
    relay_mbit: Positive = 8.0
    """Most that a relayed volunteer moves through its relay in each direction, Mbit/s. Assumed."""


class Compute(Part):
    """Machines of volunteers."""

    gflops: LogNormal = LogNormal(median=60.0, spread=0.8)
    """Sustained in training, 10^9 operations/s; 60 is one core of docs/performance.md, the spread is assumed."""
    samples_per_second: Positive | None = None
    """Training speed of the median volunteer where it was measured, instead of the one computed from gflops."""


class Day(Part):
    """How arrivals follow the day."""

    amplitude: Share = 0.3
    """Arrivals swing by this share around their mean. Assumed."""
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 20.0
    start_hour: Annotated[float, Field(ge=0, lt=24)] = 14.0
    """Time of day at which the simulation begins; by default the mean rate."""


class Clients(Part):
    """Who asks the swarm."""

    per_peer_hour: Annotated[float, Field(ge=0, le=1e6)] = 10.0
    """Requests in an hour, for each volunteer there. Assumed."""
    positions: Annotated[int, Field(ge=1, le=4096)] = 128
    """Bytes whose distribution one request asks for."""
    deadline_seconds: Positive = 10.0


class Liars(Part):
    """Volunteers that break the rules, all in the same way."""

    share: Share = 0.0
    kind: LiarKind = "long"
    """``long``: updates 30 times too long. ``nan``: not finite. ``samples``: claims ten times its samples.
    ``silent``: takes its seat in a list and sends nothing."""


class Start(Part):
    """The swarm at the beginning."""

    warm: bool = True
    """Volunteers are at their posts, as after a long time; else all arrive within ``minutes``."""
    minutes: Positive = 5.0
    shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1e6)], ...] | None, AsTuple] = None
    """Relative numbers of first volunteers of each block, block 0 first; by default what placement makes of them."""


class Volunteer(Part):
    """One of the first volunteers, as given: to simulate machines that are known. What is left out is drawn."""

    peer_id: Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{16,64}$")] | None = None
    """Its id, from which it follows who leads which round."""
    block: Annotated[int, Field(ge=0)] | None = None
    up_mbit: Positive | None = None
    down_mbit: Positive | None = None
    rtt_ms: Positive | None = None
    """Of its round trips to others like it."""
    samples_per_second: Positive | None = None
    hidden: bool | None = None
    """Whether others cannot dial it."""
    leaves_minutes: Positive | None = None
    goodbye: bool | None = None


class Departure(Part):
    """Many leave at once without a goodbye: a power cut, a provider's failure."""

    at: Share
    """When, as a share of the simulated time."""
    share: Share


class Partition(Part):
    """The swarm falls into two parts that cannot reach each other."""

    at: Share
    """When, as a share of the simulated time."""
    minutes: Positive
    share: Share
    """Share of the volunteers in the smaller part."""


class WhatIf(Part):
    """Policies that peers had, or do not have, to see what they would do."""

    donors: Literal["spread", "first"] = "spread"
    """Whom peers ask for a state. ``spread``, as they do: everyone another choice of those who have it. ``first``, as
    they did: the leader that told of it and the first on record in the order of ids, all the same."""
    looks: Literal["sized", "often"] = "sized"
    """How often peers read the directory. ``sized``, as they do: as often as the swarm's size allows, others' blocks
    more seldom. ``often``, as they did: every block every few seconds."""


class Scenario(Part):
    """Everything about a simulated swarm that is not in its manifest."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = "home"
    about: Annotated[str, Field(max_length=400)] = ""
    sessions: Sessions = Sessions()
    network: Network = Network()
    nat: Nat = Nat()
    compute: Compute = Compute()
    day: Day = Day()
    clients: Clients = Clients()
    liars: Liars = Liars()
    start: Start = Start()
    what_if: WhatIf = WhatIf()
    volunteers: Annotated[tuple[Volunteer, ...], AsTuple] = ()
    departures: Annotated[tuple[Departure, ...], AsTuple] = ()
    partitions: Annotated[tuple[Partition, ...], AsTuple] = ()


BUILT_IN = {
    scenario.name: scenario
    for scenario in (
        Scenario(about="home machines that come and go; nothing special happens"),
        Scenario(
            name="loss",
            about="as home; at half time 30 % vanish at once",
            departures=(Departure(at=0.5, share=0.3),),
        ),
        Scenario(
            name="partition",
            about="as home; at 40 % of the time a third is cut off for ten minutes",
            partitions=(Partition(at=0.4, minutes=10.0, share=0.33),),
        ),
        Scenario(name="liars", about="as home; one in twenty sends updates that are too long", liars=Liars(share=0.05)),
        Scenario(name="rush", about="as home; all arrive within five minutes", start=Start(warm=False)),
        Scenario(
            name="lab",
            about="steady machines on fast lines, none behind a NAT",
            sessions=Sessions(median_hours=48.0, shape=1.0, goodbye=0.95),
            network=Network(
                up_mbit=LogNormal(median=500.0, spread=0.3),
                down_mbit=LogNormal(median=500.0, spread=0.3),
                rtt_ms=LogNormal(median=20.0, spread=0.5),
            ),
            nat=Nat(share=0.0),
            day=Day(amplitude=0.0),
        ),
    )
}
"""Scenarios by name."""


def scenario_from(text: str) -> Scenario:
    """A built-in scenario by its name, or one from a TOML file.

    Raises
    ------
    ScenarioError
        Naming the file and every field at fault.
    """
    if text in BUILT_IN:
        return BUILT_IN[text]
    return part_from_file(Scenario, Path(text), source=text, names=BUILT_IN)


def read_scenario(mapping: dict[str, Any], *, source: str = "scenario") -> Scenario:
    """Check plain data and freeze it; raises `ScenarioError`."""
    return read_part(Scenario, mapping, source=source)


def check_workers(scenario: Scenario, *, peers: int, blocks: int, source: str) -> None:
    """Raise `ScenarioError` where a block would begin without a worker, or a volunteer has no place."""
    ids: dict[str, int] = {}
    for number, volunteer in enumerate(scenario.volunteers):
        if volunteer.peer_id is not None and ids.setdefault(volunteer.peer_id, number) != number:
            first = ids[volunteer.peer_id]
            raise ScenarioError(source, [f"volunteers.{number}.peer_id: is that of volunteers.{first} as well"])
    if len(scenario.volunteers) > peers:
        raise ScenarioError(
            source, [f"volunteers: {len(scenario.volunteers)} are described, but there are {peers} peers"]
        )
    for number, volunteer in enumerate(scenario.volunteers):
        if volunteer.block is not None and volunteer.block >= blocks:
            raise ScenarioError(
                source, [f"volunteers.{number}.block: {volunteer.block} for a model of {blocks} blocks"]
            )
    shares = scenario.start.shares
    if shares is not None and len(shares) != blocks:
        bare = f"; block {len(shares)} has no worker" if len(shares) < blocks else ""
        raise ScenarioError(source, [f"start.shares: {len(shares)} shares for a model of {blocks} blocks{bare}"])
    if peers < blocks:
        raise ScenarioError(
            source,
            [f"peers: {peers} for a model of {blocks} blocks; block {peers} has no worker: take {blocks} at least"],
        )
    if shares is not None and round(peers * min(shares) / sum(shares)) < 1:
        bare_block = min(range(blocks), key=lambda block: shares[block])
        raise ScenarioError(source, [f"start.shares: of {peers} peers block {bare_block} has no worker"])
