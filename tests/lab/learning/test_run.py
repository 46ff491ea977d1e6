"""Whole runs at a size that says nothing about learning: files, going on, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockswarm.errors import BlockswarmError
from blockswarm.lab.errors import LabError, LabUsageError
from blockswarm.lab.learning import run as runs
from blockswarm.lab.learning.report import write_report
from blockswarm.lab.learning.results import load, table
from blockswarm.lab.learning.run import Run, run
from blockswarm.lab.learning.simulation import simulate
from blockswarm.lab.wants import CACHE, Step

SMOKE = Run(regimes=("mild", "wan-tight"), policies=("fixed-2", "elastic+int4"), size="smoke", rounds=2, eval_bytes=300)


@pytest.fixture
def asked(tmp_path: Path, folder: Path) -> Run:
    return replace(SMOKE, data=str(folder), output=tmp_path / "out")


def test_a_run_writes_everything_and_the_next_one_goes_on(asked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = []
    figures, interrupted = run(asked, steps.append)
    assert not interrupted
    assert [(row.regime, row.policy) for row in figures.rows] == [
        (regime, policy) for regime in asked.regimes for policy in asked.policies
    ]
    assert Step("simulated trainings", 4, 4) in steps
    assert Step("mild fixed-2 seed 0", 100, 100) in steps
    paths = write_report(asked.output, figures)
    assert sorted(path.suffix for path in paths) == [".csv", ".json", ".md", ".png", ".png"]
    assert all(path.stat().st_size > 300 for path in paths)
    assert load(asked.output) == figures

    def none_again(*_: object, **__: object) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr(runs, "simulate", none_again)
    fewer, _ = run(replace(asked, regimes=("wan-tight",)))
    assert fewer == figures, "what was there stays in the table"


def test_the_summary_has_the_columns_of_the_papers_tables(asked: Run) -> None:
    figures, _ = run(replace(asked, regimes=("mild",), policies=("fixed-2",), seeds=(0, 1)))
    (row,) = figures.summary()
    assert {"regime", "policy", "final_ce", "ppl", "participation", "wall_s"} <= set(row)
    assert row["seeds"] == [0, 1]
    assert row["wall_s"] == pytest.approx(2 * 0.85)
    assert "| mild | fixed-2 |" in table(figures)
    assert "T5: 2.051, 0.75, 10.2" in table(figures)
    json.dumps(row)


def test_ctrl_c_keeps_what_is_done(asked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def until_wan(case: Any, *arguments: Any, **named: Any) -> Any:
        if "wan-tight" in str(case):
            raise KeyboardInterrupt
        return simulate(case, *arguments, **named)

    monkeypatch.setattr(runs, "simulate", until_wan)
    figures, interrupted = run(asked)
    assert interrupted
    assert [row.regime for row in figures.rows] == ["mild", "mild"]
    monkeypatch.undo()
    assert len(run(asked)[0].rows) == 4


def test_a_damaged_outcome_is_told_and_simulated_again(asked: Run) -> None:
    one = replace(asked, regimes=("mild",), policies=("fixed-2",))
    figures, _ = run(one)
    (kept,) = (asked.output / CACHE).glob("learning-*.json")
    kept.write_text(kept.read_text()[:40])
    told: list[str] = []
    again, _ = run(one, warn=told.append)
    assert len(told) == 1
    assert "damaged" in told[0]
    assert [replace(row, seconds=0.0) for row in again.rows] == [replace(row, seconds=0.0) for row in figures.rows]


def test_an_outcome_that_cannot_be_read_is_told_in_one_line(asked: Run) -> None:
    one = replace(asked, regimes=("mild",), policies=("fixed-2",))
    run(one)
    (kept,) = (asked.output / CACHE).glob("learning-*.json")
    kept.unlink()
    kept.mkdir()
    with pytest.raises(LabError, match=f"{kept.name}: cannot be read: Is a directory"):
        run(one)


@pytest.mark.parametrize("damage", [{"settings": [1]}, {"published": 3}, {"rows": [{"curve": []}]}, {"format": 1}])
def test_figures_that_are_damaged_are_named_before_anything_is_simulated(asked: Run, damage: dict[str, Any]) -> None:
    run(replace(asked, regimes=("mild",), policies=("fixed-2",)))
    path = asked.output / "learning.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(LabUsageError, match=r"learning\.json: damaged, or something else's"):
        run(asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": "huge"}, "no size 'huge'"),
        ({"policies": ("sometimes",)}, "must be fixed-<steps> or elastic"),
        ({"regimes": ("gale",)}, "gale: No such file"),
        ({"recipe": "gale"}, "gale: No such file"),
        ({"rounds": 0}, "paper: rounds: "),
        ({"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(asked: Run, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BlockswarmError, match=said):
        run(replace(asked, **changes))
    assert not asked.output.exists()


def test_figures_of_other_settings_are_not_mixed(asked: Run) -> None:
    one = replace(asked, regimes=("mild",), policies=("fixed-2",))
    run(one)
    with pytest.raises(LabUsageError, match=r"holds figures of other settings \(recipe\)"):
        run(replace(one, rounds=3))
