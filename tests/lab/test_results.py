"""Figures on disk, and the table made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockswarm.lab.errors import LabError
from blockswarm.lab.results import Figures, Row, load, save, table


def row(label: str, seed: int, nats: float, **more: Any) -> Row:
    values: dict[str, Any] = {
        "label": label,
        "group": "g",
        "seed": seed,
        "nats_per_byte": nats,
        "bits_per_byte": nats / 0.6931,
        "ci95": 0.01,
        "bytes": 1000,
        "tokens": 2048,
        "seconds": 1.5,
        "bytes_sent": 0,
    }
    return Row(**{**values, **more})


FIGURES = Figures(
    experiment="readouts",
    settings={"part": "test", "seeds": [0, 1]},
    rows=[
        row("end_to_end_full", 0, 1.5),
        row("end_to_end_full", 1, 1.7),
        row("parallel", 0, 1.4),
        row("parallel", 1, 1.5, ci95=None),
    ],
    curves={"parallel": [(10, 2.5)]},
    machine={"cores": 2},
)


def test_figures_come_back_as_they_were_saved(tmp_path: Path) -> None:
    assert load(save(tmp_path, FIGURES)) == FIGURES
    assert (tmp_path / "readouts.csv").read_text().count("\n") == 1 + len(FIGURES.rows)


def test_a_summary_is_over_the_seeds() -> None:
    summary = FIGURES.summary()["parallel"]
    assert summary["mean"] == pytest.approx(1.45)
    assert summary["std"] == pytest.approx(0.0707, abs=1e-4)
    assert summary["seeds"] == [0, 1]


def test_gaps_are_paired_by_seed() -> None:
    """Seed 0 differs by −0.1 and seed 1 by −0.2: the spread of the gap is not that of the rows."""
    mean, spread = FIGURES.gaps()["parallel"]
    assert mean == pytest.approx(-0.15)
    assert spread == pytest.approx(0.0707, abs=1e-4)


@pytest.mark.parametrize("seeds", [3, "01", None, ["0"], [0.5], [-1], [True]])
def test_seeds_that_are_none_are_told_before_anything_is_trained(tmp_path: Path, seeds: Any) -> None:
    path = save(tmp_path, FIGURES)
    content = json.loads(path.read_text())
    content["settings"]["seeds"] = seeds
    path.write_text(json.dumps(content))
    with pytest.raises(LabError, match="damaged or half-written"):
        load(path)


def test_the_table_has_a_line_for_each_row_and_says_the_gap() -> None:
    lines = table(FIGURES).splitlines()
    assert "| parallel | 1.4500 ± 0.0707 | 2.0919 | -0.1500 ± 0.0707 |" in lines[-1]


def test_rows_of_one_group_stand_together_under_its_name() -> None:
    rows = [row("a", 0, 1.0, group="x"), row("b", 0, 1.0, group="y"), row("c", 0, 1.0, group="x")]
    lines = table(replace(FIGURES, rows=rows)).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["**x**", "a", "c", "**y**", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged or half-written"),
        ("[]", "damaged or half-written"),
        ('{"format": "something else"}', "is not an experiment's figures"),
        (json.dumps({"format": "blockswarm-experiment-2", "rows": [{"label": 1}]}), "damaged or half-written"),
    ],
)
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "readouts.json"
    path.write_text(content)
    with pytest.raises(LabError, match=said):
        load(path)


def test_a_figure_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, FIGURES)
    path.write_text(path.read_text().replace("1.7", "NaN"))
    with pytest.raises(LabError, match="not finite"):
        load(path)
