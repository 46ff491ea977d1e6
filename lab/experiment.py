"""What an experiment is: rows to fill, each a readout of something trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from blockswarm.lab.plan import Averaging, Plan, plain_plan
from blockswarm.lab.wants import NGRAM
from blockswarm.model.config import ModelConfig, Recipe

if TYPE_CHECKING:
    from blockswarm.lab.results import Figures


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The frame all rows of an experiment share."""

    model: ModelConfig
    """Shape of the blocks."""
    recipe: Recipe
    """The ``default`` recipe; ``paper`` stands beside it where an experiment says so."""
    paper: Recipe
    """The recipe as published."""
    steps: int
    """Optimiser steps of each block and of each end-to-end model."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row for one seed."""

    label: str
    """Names the row; the same in every seed."""
    plans: tuple[Plan, ...]
    """What is trained; several are averaged; none for the counts."""
    readout: str
    """How it is read, see ``measuring``."""
    group: str = ""
    """Heading under which the row stands."""
    x: float | None = None
    """Where the row stands on the figure's axis, if it has one."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further columns."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question and the rows that answer it."""

    name: str
    title: str
    question: str
    """One sentence for the report."""
    entries: Callable[[Setting, int], list[Entry]]
    """The rows of one seed."""
    steps: int = 400
    """Optimiser steps unless the caller says otherwise."""
    derived: Callable[[Figures], dict[str, Any]] = lambda figures: {}
    """Further figures of ``--json``, from the rows."""
    also: Callable[[Setting], list[dict[str, Any]]] = lambda setting: []
    """Rows of a further table, measured once and not by seed; each a column's name to its value."""
    tables: bool = True
    """Whether blocks have their n-gram tables, see `without_tables`."""
    chooses: bool = False
    """Whether choices are made by its figures: then it is measured on the validation bytes, never on the test bytes."""
    axis: str = ""
    """What ``Entry.x`` is; without, the figure has a dot for each row."""


DEEP_MUON_RATE = 0.03
"""Muon's best rate for end-to-end models of full depth, of .01, .02 and .03 at the prototype's setting; blocks and
models of their depth did best at .04. Every model gets the rate that suits it."""


def baselines(setting: Setting, seed: int) -> list[Entry]:
    """The rows that stand in every table: counts, end-to-end of both depths, DiLoCo, and averaged plain models."""
    model, recipe, steps = setting.model, setting.recipe, setting.steps
    full = plain_plan(model, model.blocks * model.layers, deep(recipe), steps, seed)
    diloco = Averaging(every=25, replicas=2, momentum=0.5, rate=0.7)
    rows = {
        "end_to_end_full": ((full,), "parallel"),
        "end_to_end_block": ((plain_plan(model, model.layers, recipe, steps, seed),), "parallel"),
        "control_ensemble": (control(setting, seed), "parallel"),
        "diloco": ((replace(full, averaging=diloco),), "parallel"),
        "ngram": ((), NGRAM),
    }
    return [
        Entry(label=label, plans=plans, readout=readout, group="baselines") for label, (plans, readout) in rows.items()
    ]


def deep(recipe: Recipe) -> Recipe:
    """``recipe`` as it suits an end-to-end model of full depth."""
    return replace(recipe, muon_rate=DEEP_MUON_RATE)


SMALL_INPUTS_RATE = 5e-3
"""AdamW's best rate where there are no n-gram tables, of 2e-3, 3e-3, 5e-3 and 8e-3 at the prototype's setting."""


def without_tables(setting: Setting) -> Setting:
    """The same frame without n-gram tables: what the prototype and the paper's tables are compared with."""
    model = replace(setting.model, ngram_tables=0)
    return replace(setting, model=model, recipe=replace(setting.recipe, learning_rate=SMALL_INPUTS_RATE))


def control(setting: Setting, seed: int) -> tuple[Plan, ...]:
    """As many independently seeded plain models of one block's depth as there are blocks."""
    model = setting.model
    seeds = [seed + 100 * number for number in range(model.blocks)]
    return tuple(plain_plan(model, model.layers, setting.recipe, setting.steps, s) for s in seeds)
