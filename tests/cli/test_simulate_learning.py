"""``blockswarm simulate learning`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blockswarm.cli import main as front

SMALL = ["--size", "smoke", "--rounds", "2", "--eval-bytes", "300", "--data", "text.txt", "--output", "out"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat"], 6000)
    Path("text.txt").write_text(" ".join(words))


def learning(*arguments: str) -> int:
    return front.run(["simulate", "learning", *SMALL, *arguments])


def test_json_is_the_last_line_and_has_the_promised_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert learning("--regime", "mild", "--policy", "fixed-2", "--policy", "elastic", "--json") == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["simulated"] is True
    assert [row["policy"] for row in printed["rows"]] == ["fixed-2", "elastic"]
    for row in printed["rows"]:
        assert {"regime", "policy", "final_ce", "ppl", "participation", "wall_s"} <= set(row)


def test_people_get_a_table_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert learning("--regime", "mild", "--policy", "fixed-2+carry") == 0
    output = capsys.readouterr().out
    assert "| mild | fixed-2+carry |" in output
    assert "out/learning-participation.png" in output
    assert Path("out/learning.md").read_text().startswith("## Learning under deadlines (simulated)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "never"], "--policy 'never': must be fixed-<steps> or elastic"),
        (["--regime", "gale"], "gale: No such file or directory; give a TOML file, or one of lockstep"),
        (["--seeds", "x"], "is not a list of whole numbers"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert learning(*arguments) != 0
    assert said in capsys.readouterr().err
    assert not Path("out").exists()
