"""``blockswarm simulate learning`` from beginning to end: every case once, kept as it ends, figures at the end."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockswarm.lab.errors import LabError, LabUsageError
from blockswarm.lab.learning import results
from blockswarm.lab.learning.policy import policy_from
from blockswarm.lab.learning.regime import REGIMES, Pace, recipe_from, regime_from, workers_of
from blockswarm.lab.learning.results import Figures, Row
from blockswarm.lab.learning.simulation import Case, simulate
from blockswarm.lab.measuring import Stack, measure
from blockswarm.lab.plan import Plan
from blockswarm.lab.processes import Task, run_tasks
from blockswarm.lab.run import refuse_other_settings, size_of
from blockswarm.lab.store import Score
from blockswarm.lab.tasks import Worker
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Trained
from blockswarm.lab.wants import CACHE, Source, Step
from blockswarm.lab.writing import write_file
from blockswarm.naming import option
from blockswarm.swarm.simulation.parts import read_part

FORMAT = 2
"""Counts up when the same case would no longer give the same figures."""

POLICIES = ("fixed-4", "fixed-8", "fixed-16", "elastic", "elastic+int4")
"""Where none is asked for."""

LOOK_BYTES = 1 << 13
"""Held-out bytes on which the curves are measured."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is simulated, and how."""

    regimes: tuple[str, ...] = REGIMES
    """Names of the package's, or files."""
    policies: tuple[str, ...] = POLICIES
    recipe: str = "paper"
    size: str = "tiny"
    blocks: int | None = None
    replicas: int | None = None
    rounds: int | None = None
    """Instead of the recipe's."""
    seeds: tuple[int, ...] = (0,)
    data: str = "docs"
    eval_bytes: int = 1 << 15
    """Held-out bytes that are measured; 0 = all."""
    output: Path = Path("results/learning")
    jobs: int = 1
    threads: int = 1


@dataclass(frozen=True)
class _Prepared:
    source: Source
    settings: dict[str, Any]
    cases: dict[str, Case]
    """By the name under which the outcome is kept."""
    published: dict[str, dict[str, Any]]


def run(
    asked: Run, report: Callable[[Step], None] = lambda _: None, warn: Callable[[str], None] = lambda _: None
) -> tuple[Figures, bool]:
    """Simulate what is not there yet; figures are written to the output folder as well.

    Parameters
    ----------
    asked : Run
        What and how.
    report : callable, optional
        Gets progress.
    warn : callable, optional
        Gets a line for every damaged file, whose case is simulated again.

    Returns
    -------
    figures : Figures
        Those asked for and, of the same settings, those that were there.
    interrupted : bool
        Whether Ctrl-C came before the end; the figures are those of what was done.

    Raises
    ------
    LabError, ScenarioError
        For whatever cannot be as it was asked for, before anything is trained.
    """
    kept = results.load(asked.output)
    prepared = _prepare(asked)
    if kept is not None:
        refuse_other_settings(asked.output, kept.settings, prepared.settings)
    folder = asked.output / CACHE
    there = {key: _kept(folder, key, warn) for key in prepared.cases}
    tasks: list[Task] = [(do_case, key, case) for key, case in prepared.cases.items() if there[key] is None]
    interrupted = False
    try:
        run_tasks(
            tasks,
            source=prepared.source,
            folder=folder,
            jobs=asked.jobs,
            threads=asked.threads,
            device="cpu",
            report=_counting(report, len(tasks)),
        )
    except KeyboardInterrupt:
        interrupted = True
    rows = [_kept(folder, key, warn) for key in prepared.cases]
    figures = Figures(
        prepared.settings,
        _merged(kept.rows if kept else (), (row for row in rows if row is not None)),
        {**(kept.published if kept else {}), **prepared.published},
    )
    results.save(asked.output, figures)
    return figures, interrupted


def _prepare(asked: Run) -> _Prepared:
    size = size_of(asked.size)
    pace = recipe_from(asked.recipe)
    changes = {name: getattr(asked, name) for name in ("blocks", "replicas", "rounds")}
    given = {name: value for name, value in changes.items() if value is not None}
    pace = read_part(Pace, {**pace.model_dump(), **given}, source=asked.recipe)
    model = replace(size, blocks=pace.blocks)
    regimes = [regime_from(text) for text in dict.fromkeys(asked.regimes)]
    policies = [policy_from(name) for name in dict.fromkeys(asked.policies)]
    names = [regime.name for regime in regimes]
    if len(set(names)) < len(names):
        raise LabUsageError(f"{option('regime')}: two of them have one name: {', '.join(names)}")
    for regime in regimes:
        workers_of(regime, blocks=pace.blocks, replicas=pace.replicas)
    source = Source(data=asked.data, context=model.context, eval_bytes=asked.eval_bytes)
    text = source.open()
    frame = [FORMAT, model.to_mapping(), asked.eval_bytes, text.corpus.digest.hex()]
    cases = [
        Case(regime=regime, policy=policy, pace=pace, model=model, seed=seed)
        for seed in asked.seeds
        for regime in regimes
        for policy in policies
    ]
    settings = {
        "size": asked.size,
        "recipe": pace.model_dump(),
        "data": text.name,
        "data_sha256": text.corpus.digest.hex(),
        "part": _part(text),
        "eval_bytes": asked.eval_bytes,
    }
    return _Prepared(
        source,
        settings,
        {_key(frame, case): case for case in cases},
        {regime.name: regime.paper.model_dump() for regime in regimes if regime.paper},
    )


def _part(text: LabText) -> str:
    """The part that is measured at the end."""
    return "test" if text.has_test else "valid"


def _key(frame: list[Any], case: Case) -> str:
    """A name for an outcome: a digest of everything that decides it."""
    told = {"about", "paper"}
    content = [
        *frame,
        case.regime.model_dump(exclude=told),
        case.pace.model_dump(exclude={"about", "name"}),
        asdict(case.policy),
        case.seed,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def _file(folder: Path, key: str) -> Path:
    return folder / f"learning-{key}.json"


def _kept(folder: Path, key: str, warn: Callable[[str], None]) -> Row | None:
    """The outcome that is kept under ``key``; a damaged one is told, and put aside.

    Raises
    ------
    LabError
        If it cannot be read.
    """
    path = _file(folder, key)
    try:
        return results.row_from(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError) as error:
        path.replace(path.with_suffix(".damaged"))
        warn(f"{path}: damaged ({error}); simulated again")
        return None


def _merged(kept: Iterable[Row], fresh: Iterable[Row]) -> tuple[Row, ...]:
    rows = {(row.regime, row.policy, row.seed): row for row in (*kept, *fresh)}
    own = [regime for regime in dict.fromkeys(row.regime for row in rows.values()) if regime not in REGIMES]
    places = {regime: place for place, regime in enumerate((*REGIMES, *own))}
    return tuple(sorted(rows.values(), key=lambda row: (places[row.regime], _order(row.policy), row.seed)))


def _order(policy: str) -> tuple[bool, int, str]:
    """Fixed numbers of steps first, small ones before large ones."""
    steps = policy_from(policy).steps
    return steps is None, steps or 0, policy


def _counting(report: Callable[[Step], None], total: int) -> Callable[[Step], None]:
    """``report``, and how many cases are done."""
    done = 0

    def count(step: Step) -> None:
        nonlocal done
        report(step)
        if step.done >= step.total:
            done += 1
        report(Step("simulated trainings", done, total))

    return count


def do_case(key: str, case: Case) -> None:
    """Simulate a case, measure what was learned, and keep the row under ``key``; a task of a bench."""
    worker, name = Worker, f"{case.regime.name} {case.policy.name} seed {case.seed}"
    began = time.monotonic()

    def ce(states: tuple[Plan, Trained], text: NDArray[np.uint8], *readouts: str) -> list[float]:
        found = measure(Stack([states], worker.device), text, readouts)
        return [Score.of(found[readout]).whole.nats_per_byte for readout in readouts]

    def look(plan: Plan, trained: Trained) -> float:
        return ce((plan, trained), worker.text.part("valid")[:LOOK_BYTES], "parallel")[0]

    def progress(share: float) -> None:
        worker.report(Step(name, min(99, math.floor(100 * share)), 100))

    outcome = simulate(case, worker.text, look=look, progress=progress)
    assert outcome.states is not None
    measured = worker.source.measured(worker.text, _part(worker.text))
    final_ce, sweep_ce = ce(outcome.states, measured, "parallel", "sweep")
    row = Row(
        regime=case.regime.name,
        policy=case.policy.name,
        seed=case.seed,
        final_ce=final_ce,
        sweep_ce=sweep_ce,
        participation=outcome.accepted / outcome.asked,
        reachable=outcome.reachable / outcome.asked,
        of_reachable=outcome.reached / outcome.reachable if outcome.reachable else 1.0,
        wall_s=outcome.wall_s,
        rounds=outcome.rounds,
        steps=outcome.steps,
        gigabytes=outcome.bytes_sent / 1e9,
        seconds=round(time.monotonic() - began, 1),
        curve=tuple(outcome.curve),
    )
    write_file(_file(worker.store.folder, key), json.dumps(asdict(row)) + "\n")
    worker.report(Step(name, 100, 100))
