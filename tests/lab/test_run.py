"""Whole experiments, at a size that says nothing about learning but goes through everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockswarm.lab.errors import LabUsageError
from blockswarm.lab.experiment import Setting
from blockswarm.lab.experiments import EXPERIMENTS
from blockswarm.lab.report import write
from blockswarm.lab.results import load
from blockswarm.lab.run import LAB_SIZES, Run, run, summary_json

SMOKE = Run(name="readouts", size="smoke", seeds=(0,), steps=1, eval_bytes=300)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_its_rows_once_and_has_the_baselines(name: str, setting: Setting) -> None:
    entries = EXPERIMENTS[name].entries(replace(setting, model=replace(setting.model, blocks=3)), 0)
    labels = [entry.label for entry in entries]
    assert len(labels) == len(set(labels))
    assert {"end_to_end_full", "end_to_end_block", "control_ensemble", "diloco", "ngram"} <= set(labels)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One output folder: experiments share baselines, which are trained once."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_and_writes_everything(name: str, cache: Path, folder: Path) -> None:
    figures = run(replace(SMOKE, name=name, output=cache, data=str(folder)))
    paths = write(cache, figures)
    assert [path.suffix for path in paths] == [".json", ".csv", ".md", ".png"]
    assert all(path.stat().st_size > 100 for path in paths)
    entries = EXPERIMENTS[name].entries
    assert load(paths[0]) == figures
    assert (figures.settings["model"]["ngram_tables"] > 0) == EXPERIMENTS[name].tables
    assert figures.part == ("valid" if name == "levers" else "test")
    assert len(figures.rows) == len(entries(_setting_of(figures.settings), 0))
    json.dumps(summary_json(figures))


def _setting_of(settings: dict[str, object]) -> Setting:
    from blockswarm.model.config import RECIPES

    return Setting(
        model=LAB_SIZES["smoke"], recipe=RECIPES["default"], paper=RECIPES["paper"], steps=int(str(settings["steps"]))
    )


def test_readouts_prints_what_its_issue_names(cache: Path) -> None:
    printed = summary_json(load(cache / "readouts.json"))
    for label in (
        "end_to_end_full",
        "end_to_end_block",
        "control_ensemble",
        "sweep",
        "sweep_paper_recipe",
        "true_z_gain",
        "sweep_corrected",
        "parallel",
        "ngram",
        "ngram_mix",
    ):
        assert set(printed[label]) == {"mean", "std", "seeds"}
    assert [subset["blocks"] for subset in printed["parallel_subsets"]] == [
        [0],
        [1],
        [2],
        [0, 1],
        [0, 2],
        [1, 2],
        [0, 1, 2],
    ]


def test_resuming_makes_nothing_twice_and_gives_the_same_figures(cache: Path, folder: Path) -> None:
    before = load(cache / "readouts.json")
    written = {path.name: path.stat().st_mtime_ns for path in (cache / ".cache").iterdir()}
    again = run(replace(SMOKE, output=cache, data=str(folder), resume=True))
    assert again == before
    assert {path.name: path.stat().st_mtime_ns for path in (cache / ".cache").iterdir()} == written


def test_a_further_seed_joins_those_that_are_there(folder: Path, tmp_path: Path) -> None:
    first = run(replace(SMOKE, name="leakage", output=tmp_path, data=str(folder), seeds=(1,)))
    both = run(replace(SMOKE, name="leakage", output=tmp_path, data=str(folder), seeds=(0,), resume=True))
    assert both.settings["seeds"] == [0, 1]
    assert [row for row in both.rows if row.seed == 1] == first.rows


def test_a_damaged_training_is_made_again_to_the_same_figures(cache: Path, folder: Path) -> None:
    before = load(cache / "leakage.json")
    trainings = sorted((cache / ".cache").glob("training-*.safetensors"))
    scores = sorted((cache / ".cache").glob("scores-*.safetensors"))
    for path in (*trainings, *scores):
        path.write_bytes(path.read_bytes()[:-5])
    told: list[str] = []
    again = run(replace(SMOKE, name="leakage", output=cache, data=str(folder), resume=True), warn=told.append)
    assert told and all("damaged" in line and "made again" in line for line in told)
    assert [row.nats_per_byte for row in again.rows] == [row.nats_per_byte for row in before.rows]


def test_another_text_in_the_same_folder_gets_counts_of_its_own(cache: Path, folder: Path, tmp_path: Path) -> None:
    """Texts share the folder for what was trained; what was made of one is never taken for the other's."""
    (tmp_path / "other.txt").write_text("an altogether different text, said again and again. " * 200)
    other = replace(SMOKE, output=cache, data=str(tmp_path / "other.txt"))
    here = run(replace(other, name="relay", output=tmp_path / "fresh"))
    (cache / "relay.json").rename(cache / "relay.json.kept")
    there = run(replace(other, name="relay"))
    (cache / "relay.json.kept").rename(cache / "relay.json")
    assert [row.nats_per_byte for row in there.rows] == [row.nats_per_byte for row in here.rows]


def test_figures_that_are_there_are_not_overwritten_unasked(cache: Path, folder: Path) -> None:
    with pytest.raises(LabUsageError, match="is there already; resume=True"):
        run(replace(SMOKE, output=cache, data=str(folder)))


def test_figures_of_other_settings_are_not_continued(cache: Path, folder: Path) -> None:
    with pytest.raises(LabUsageError, match=r"other settings \(steps\)"):
        run(replace(SMOKE, output=cache, data=str(folder), resume=True, steps=2))


def test_processes_side_by_side_give_the_same_figures(cache: Path, folder: Path, tmp_path: Path) -> None:
    apart = run(replace(SMOKE, name="leakage", output=tmp_path, data=str(folder), jobs=2))
    assert [row.nats_per_byte for row in apart.rows] == [row.nats_per_byte for row in load(cache / "leakage.json").rows]


def test_an_unknown_name_lists_the_experiments() -> None:
    with pytest.raises(LabUsageError, match="no experiment 'sigma'; there are sigma-range, progression"):
        run(replace(SMOKE, name="sigma"))


def test_an_unknown_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabUsageError, match="no size 'huge'"):
        run(replace(SMOKE, size="huge", output=tmp_path))
