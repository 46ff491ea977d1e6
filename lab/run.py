"""Running an experiment from beginning to end: what is there is kept, what is missing is made, figures are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockswarm.lab.bench import Bench
from blockswarm.lab.checkpoint import fits, save_stack
from blockswarm.lab.errors import LabUsageError
from blockswarm.lab.experiment import Entry, Experiment, Setting, without_tables
from blockswarm.lab.experiments import EXPERIMENTS
from blockswarm.lab.plan import Plan
from blockswarm.lab.results import Figures, Row, load, machine, save
from blockswarm.lab.store import Store
from blockswarm.lab.wants import CACHE, Source, Step, Want
from blockswarm.model.config import RECIPES, SIZES, ModelConfig
from blockswarm.naming import option

SMOKE = ModelConfig(dim=24, blocks=3, layers=1, heads=2, context=32, ngram_tables=2, ngram_rows=64, ngram_width=4)
LAB_SIZES = {**SIZES, "smoke": SMOKE}
"""Sizes by name; ``smoke`` goes through everything in seconds and says nothing about learning."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How an experiment is run."""

    name: str
    size: str = "tiny"
    seeds: tuple[int, ...] = (0, 1, 2)
    data: str = "docs"
    output: Path = Path("results")
    steps: int = 0
    """Optimiser steps; 0 = the experiment's own number."""
    eval_bytes: int = 0
    """Bytes of each part that are measured; 0 = all."""
    jobs: int = 1
    threads: int = 1
    device: str = "cpu"
    resume: bool = False
    """Whether figures of the same settings that are there already are continued; their seeds stay."""
    save: Path | None = None
    """Folder for the first stack of blocks of the first seed."""


def size_of(name: str) -> ModelConfig:
    """The size called ``name``; raises ``LabError``, which lists them, if there is none."""
    if name not in LAB_SIZES:
        raise LabUsageError(f"no size {name!r}; there are {', '.join(LAB_SIZES)}")
    return LAB_SIZES[name]


def refuse_other_settings(path: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ``LabError`` where the figures at ``path`` were made with other settings than those asked for."""
    differing = [key for key, value in asked.items() if kept.get(key) != value]
    if differing:
        raise LabUsageError(
            f"{path}: holds figures of other settings ({', '.join(differing)}); give another {option('output')}"
        )


def find(name: str) -> Experiment:
    """The experiment called ``name``.

    Raises
    ------
    LabError
        If there is none; lists them.
    """
    if name not in EXPERIMENTS:
        raise LabUsageError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def run(
    asked: Run, report: Callable[[Step], None] = lambda _: None, warn: Callable[[str], None] = lambda _: None
) -> Figures:
    """Carry out an experiment.

    Parameters
    ----------
    asked : Run
        What and how.
    report : callable, optional
        Gets progress.
    warn : callable, optional
        Gets a line for every damaged file that was found and is made again.

    Returns
    -------
    Figures
        Written to ``<output>/<name>.json`` and ``.csv`` as well.

    Raises
    ------
    LabError
        If the output folder holds figures of other settings, or of these and ``resume`` was not asked for.
    """
    experiment = find(asked.name)
    setting = _setting(asked, experiment)
    source = Source(data=asked.data, context=setting.model.context, eval_bytes=asked.eval_bytes)
    bench = Bench(
        source,
        Store(asked.output / CACHE),
        jobs=asked.jobs,
        threads=asked.threads,
        device=asked.device,
        report=report,
        warn=warn,
    )
    settings: dict[str, Any] = {
        "size": asked.size,
        "steps": setting.steps,
        "data": bench.text.name,
        "data_sha256": bench.text.corpus.digest.hex(),
        "part": "test" if bench.text.has_test and not experiment.chooses else "valid",
        "eval_bytes": asked.eval_bytes,
        "model": setting.model.to_mapping(),
        "recipe": setting.recipe.to_mapping(),
        "paper": setting.paper.to_mapping(),
    }
    kept = _kept(asked, settings)
    seeds = sorted({*asked.seeds, *(kept.settings["seeds"] if kept else ())})
    entries = [(seed, entry) for seed in seeds for entry in experiment.entries(setting, seed)]
    wants = [Want(plans=entry.plans, readouts=(entry.readout,), part=settings["part"]) for _, entry in entries]
    bench.provide(wants)
    figures = Figures(
        experiment=asked.name,
        settings=settings | {"seeds": seeds},
        rows=[_row(bench, entry, seed, want) for (seed, entry), want in zip(entries, wants, strict=True)],
        curves=_curves(bench, entries, seeds[0]),
        machine=machine(asked.threads, asked.jobs, asked.device),
        also=kept.also if kept else experiment.also(setting),
    )
    save(asked.output, figures)
    if asked.save:
        _save_model(asked, bench, [plan for _, entry in entries for plan in entry.plans])
    return figures


def _save_model(asked: Run, bench: Bench, plans: Sequence[Plan]) -> None:
    assert asked.save is not None
    for plan in plans:
        if fits(plan) and plan.model.blocks > 1:
            save_stack(asked.save, f"experiment-{asked.name}"[:32], plan, bench.training(plan), data=bench.text.name)
            return
    raise LabUsageError(f"{asked.name} trains no stack of blocks that could be saved")


def _setting(asked: Run, experiment: Experiment) -> Setting:
    setting = Setting(
        model=size_of(asked.size),
        recipe=RECIPES["default"],
        paper=RECIPES["paper"],
        steps=asked.steps or experiment.steps,
    )
    return setting if experiment.tables else without_tables(setting)


def _kept(asked: Run, settings: dict[str, Any]) -> Figures | None:
    """The figures of the same settings that are continued."""
    path = asked.output / f"{asked.name}.json"
    if not path.exists():
        return None
    if not asked.resume:
        raise LabUsageError(
            f"{path}: is there already; {option('resume', True)} makes what is missing, another {option('output')} "
            "starts elsewhere"
        )
    kept = load(path)
    refuse_other_settings(path, kept.settings, settings)
    return kept


def _row(bench: Bench, entry: Entry, seed: int, want: Want) -> Row:
    score = bench.score(want)[entry.readout]
    trainings = [bench.spent(plan) for plan in entry.plans]
    return Row(
        label=entry.label,
        group=entry.group,
        seed=seed,
        nats_per_byte=score.whole.nats_per_byte,
        bits_per_byte=score.whole.bits_per_byte,
        ci95=score.whole.ci95,
        bytes=score.whole.bytes,
        tokens=max((plan.tokens for plan in entry.plans), default=len(bench.text.corpus.train)),
        seconds=round(sum(training.seconds for training in trainings), 1),
        bytes_sent=sum(training.bytes_sent for training in trainings),
        x=entry.x,
        facts=dict(entry.facts) or None,
    )


def _curves(bench: Bench, entries: Sequence[tuple[int, Entry]], seed: int) -> dict[str, list[tuple[int, float]]]:
    curves = {}
    for number, entry in entries:
        watched = [bench.spent(plan).watched for plan in entry.plans if plan.watch]
        if number == seed and watched:
            curves[entry.label] = watched[0]
    return curves


def summary_json(figures: Figures) -> dict[str, Any]:
    """What ``--json`` prints: every label's mean, deviation and seeds."""
    return {
        "experiment": figures.experiment,
        **{key: figures.settings[key] for key in ("size", "steps", "seeds", "data")},
        "part": figures.part,
        **figures.summary(),
        **EXPERIMENTS[figures.experiment].derived(figures),
        **({"also": figures.also} if figures.also else {}),
    }
