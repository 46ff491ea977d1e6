"""Regimes and recipes are read strictly, and those of the package hold what the paper's tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockswarm.errors import UsageError
from blockswarm.lab.learning.regime import RECIPES, REGIMES, recipe_from, regime_from, workers_of
from blockswarm.swarm.simulation.parts import ScenarioError

LINES = "deadline_seconds = 2.0\n[latency_seconds]\nmedian = 0.1\n[up_mbit]\nmedian = 20.0\n"


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_of_the_package_knows_its_row_of_the_paper(name: str) -> None:
    regime = regime_from(name)
    assert regime.name == name
    assert regime.paper is not None
    # The columns of the paper divide by twelve: as many deadlines are in the simulated wall.
    assert recipe_from("paper").rounds * regime.deadline_seconds == pytest.approx(regime.paper.wall_s)


def test_the_recipe_paper_has_the_payload_of_the_papers_transport_table() -> None:
    paper = recipe_from("paper")
    assert paper.payload_values is not None
    # T7: 10.23 GB over 16 rounds of 6 workers, there and back.
    assert 4 * paper.payload_values == pytest.approx(10.23e9 / 16 / 6 / 2, rel=0.01)
    assert [recipe_from(name).name for name in RECIPES] == list(RECIPES)


def test_ones_own_regime_is_named_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "attic.toml"
    path.write_text("workers = [2, 1, 1]\n" + LINES)
    regime = regime_from(str(path))
    assert (regime.name, regime.dropout, regime.waits, regime.up_mbit.spread) == ("attic", 0.0, False, 0.0)
    assert workers_of(regime, blocks=3, replicas=5) == (2, 1, 1)
    assert workers_of(regime_from("mild"), blocks=2, replicas=5) == (5, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed = 3\n" + LINES, "mine.toml: speed: unknown key"),
        (LINES.replace("20.0", "-20.0"), "mine.toml: up_mbit.median: "),
        ("dropout = 1.5\n" + LINES, "mine.toml: dropout: "),
        ("deadline_seconds = 0.0\n", "deadline_seconds: .*latency_seconds: "),
        (LINES + "[compute]\nmedian = 1.0\n", "mine.toml: compute.median: unknown key"),
        ("deadline_seconds = ", "mine.toml: not valid TOML"),
    ],
)
def test_whatever_is_wrong_is_named_with_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=said) as refused:
        regime_from(str(path))
    assert isinstance(refused.value, UsageError)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_neither_known_nor_a_file_lists_those_there_are() -> None:
    with pytest.raises(ScenarioError, match=r"gale: No such file or directory; give a TOML file, or one of lockstep"):
        regime_from("gale")
    with pytest.raises(ScenarioError, match=r"gale: .* one of paper, own"):
        recipe_from("gale")


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ("[1, 0, 1]", "attic: workers: block 1 has no worker"),
        ("[1, 1]", "attic: workers: 2 numbers for a model of 3 blocks; block 2 has no worker"),
        ("[1, 1, 1, 1]", "attic: workers: 4 numbers for a model of 3 blocks"),
    ],
)
def test_a_block_without_a_worker_is_refused(tmp_path: Path, workers: str, said: str) -> None:
    path = tmp_path / "attic.toml"
    path.write_text(f"workers = {workers}\n" + LINES)
    with pytest.raises(ScenarioError, match=said):
        workers_of(regime_from(str(path)), blocks=3, replicas=1)
