"""Regimes (lines, machines, deadlines) and recipes (payload, speeds, sizes) of a simulated training, as data.

A regime is a TOML file, a recipe another; those of the package lie beside this module. Every key that is not known,
every value out of range is named with its file and field.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from blockswarm.swarm.simulation.parts import AsTuple, Part, Positive, ScenarioError, Share, part_from_file

REGIMES = ("lockstep", "mild", "wan-tight", "wan-mid", "wan-loose", "edge-mid", "bad-edge", "bad-edge-loose")
"""Those of the package, in the order of the paper's tables."""

RECIPES = ("paper", "own")
"""Those of the package."""

Spread = Annotated[float, Field(ge=0, le=3)]
Name = Annotated[str, Field(min_length=1, max_length=64)]


class Varying(Part):
    """How a quantity varies: standard deviations of its natural logarithm."""

    spread: Spread = 0.0
    """Between workers: a worker keeps its own for as long as the simulation lasts."""
    jitter: Spread = 0.0
    """From round to round."""


class Quantity(Varying):
    """A quantity that is log-normal over workers and rounds."""

    median: Positive


class Published(Part):
    """What the paper's tables say of a regime."""

    table: Literal["T4", "T5"]
    ce: Positive
    """Final cross-entropy, nats a byte."""
    participation: Share
    wall_s: Positive


class Regime(Part):
    """What updates meet on their way."""

    name: Name
    about: Annotated[str, Field(max_length=400)] = ""
    deadline_seconds: Positive
    """τ: from the beginning of a round to the moment at which updates must have arrived."""
    waits: bool = False
    """Whether a round waits for everybody instead: then it ends with the last arrival, and nobody is late."""
    dropout: Share = 0.0
    """Share of the updates that never arrive."""
    compute: Varying = Varying()
    """Of the seconds that a step takes, which the recipe gives."""
    latency_seconds: Quantity
    up_mbit: Quantity
    """Upload, Mbit/s."""
    workers: Annotated[tuple[Annotated[int, Field(ge=0, le=64)], ...] | None, AsTuple] = None
    """Workers of each block, block 0 first, instead of the same number everywhere."""
    paper: Published | None = None


class Pace(Part):
    """A recipe: how large updates are, how fast steps, and how much is simulated."""

    name: Name
    about: Annotated[str, Field(max_length=400)] = ""
    payload_values: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Values of an update as it travels, whatever is trained; without it those of the trained block and embedding."""
    step_seconds: Positive
    """Of an optimizer step at the median worker, in simulated time."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    """The number of local steps for which a regime's published participation holds."""
    blocks: Annotated[int, Field(ge=1, le=256)] = 3
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Workers of each block."""
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 12
    """Deadlines that the simulated time holds."""


P = TypeVar("P", Regime, Pace)


def regime_from(text: str) -> Regime:
    """A regime of the package by its name, or one's own from a TOML file; raises `ScenarioError`."""
    return _from(Regime, text, "regimes", REGIMES)


def recipe_from(text: str) -> Pace:
    """A recipe of the package by its name, or one's own from a TOML file; raises `ScenarioError`."""
    return _from(Pace, text, "recipes", RECIPES)


def _from(kind: type[P], text: str, folder: str, names: tuple[str, ...]) -> P:
    path: Path | Traversable = Path(text)
    if text in names:
        path = files("blockswarm.lab.learning").joinpath(folder, f"{text}.toml")
    return part_from_file(kind, path, source=text, names=names)


def workers_of(regime: Regime, *, blocks: int, replicas: int) -> tuple[int, ...]:
    """Workers of each block.

    Raises
    ------
    ScenarioError
        Where a block would have none.
    """
    if regime.workers is None:
        return (replicas,) * blocks
    problems = [f"workers: block {block} has no worker" for block, count in enumerate(regime.workers) if not count]
    if len(regime.workers) != blocks:
        bare = f"; block {len(regime.workers)} has no worker" if len(regime.workers) < blocks else ""
        problems.append(f"workers: {len(regime.workers)} numbers for a model of {blocks} blocks{bare}")
    if problems:
        raise ScenarioError(regime.name, problems)
    return regime.workers
