"""``blockswarm simulate swarm`` and ``blockswarm plan`` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockswarm.cli import main as front
from blockswarm.swarm.simulation import plan
from blockswarm.swarm.simulation.simulator import Simulation

SMALL = ["--peers", "12", "--hours", "0.05"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "ROUNDS", 8)


def simulate(*arguments: str) -> int:
    return front.run(["simulate", "swarm", *SMALL, *arguments])


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 1
    figures: dict[str, Any] = json.loads(output)
    return figures


def test_a_simulation_says_first_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SIMULATED swarm of 12 volunteers, scenario home, seed 0: 0.05 h, 18 rounds, 3 blocks")
    assert any("GB a peer and day" in line for line in lines)


def test_json_is_one_object_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--json", "--scenario", "loss", "--seed", "3") == 0
    figures = printed(capsys)
    assert figures["simulated"] is True
    assert {"peers", "hours", "coverage", "participation", "rounds_per_hour", "join_to_commit_s", "elapsed_s",
            "max_rss_mb", "heal_s", "gb_per_peer_day", "client", "percentiles"} <= set(figures)  # fmt: skip
    assert (figures["peers"], figures["hours"], figures["seed"]) == (12, 0.05, 3)
    assert set(figures["percentiles"]["participation"]) == {"p5", "p25", "p50", "p75", "p95", "p99"}


def test_the_same_seed_gives_the_same_object(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        assert simulate("--json", "--scenario", "rush") == 0
        figures = printed(capsys)
        found.append({key: value for key, value in figures.items() if key not in ("elapsed_s", "max_rss_mb")})
    assert found[0] == found[1]


def test_the_manifest_says_what_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["init", "--name", "slow", "--round-seconds", "60"]) == 0
    capsys.readouterr()
    assert simulate("--json", "--manifest", "swarm.toml") == 0
    assert printed(capsys)["rounds"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario", "nowhere.toml"], "nowhere.toml: No such file or directory; give a TOML file, or one of home"),
        (["--scenario", "bad.toml"], "bad.toml: nat.share: must be less than or equal to 1, is 2.0; naat: unknown key"),
        (["--peers", "2"], "home: peers: 2 for a model of 3 blocks; block 2 has no worker"),
        (["--peers", "0"], "invalid value for '--peers'"),
        (["--hours", "-1"], "invalid value for '--hours'"),
        (["--manifest", "bad.toml"], "bad.toml"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text("[nat]\nshare = 2.0\n[naat]\n")
    assert simulate(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_ctrl_c_shows_what_is_done_so_far(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Simulation.run

    def stopped(self: Simulation) -> Iterator[int]:
        for done in whole(self):
            if done == 5:
                raise KeyboardInterrupt
            yield done

    monkeypatch.setattr(Simulation, "run", stopped)
    assert simulate("--json") == 130
    figures = printed(capsys)
    assert (figures["interrupted"], figures["rounds"]) == (True, 5)


def test_a_picture_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert simulate("--plot", "swarm.png") == 0
    assert Path("swarm.png").read_bytes().startswith(b"\x89PNG")
    assert simulate("--plot", "missing/swarm.png") == 1
    assert "missing/swarm.png: cannot write the picture: No such file or directory" in capsys.readouterr().err


def test_a_plan_for_people_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--peers", "12", "--bandwidth", "10mbit", "--tokens", "1e6"]
    assert front.run(asked) == 0
    text = capsys.readouterr().out
    assert "SIMULATED" in text.splitlines()[0]
    assert "round length" in text
    assert front.run([*asked, "--json"]) == 0
    advice = printed(capsys)
    assert {"round_seconds", "group_size", "replicas_per_block", "participation", "gb_per_peer_day", "hours",
            "limits", "simulated"} <= set(advice)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bandwidth", "fast"], "'fast' is not a rate such as 20mbit"),
        (["--bandwidth", "0mbit"], "--bandwidth: must be more than nothing"),
        (["--bandwidth", "1kbit"], "no round of up to 3600 s holds an update of 0.9 MB"),
        (["--peers", "2"], "plan: peers: 2 for a model of 3 blocks; block 2 has no worker"),
        (["--tokens", "many"], "'many' is not a number of tokens such as 1e9"),
        (["--coverage", "1"], "invalid value for '--coverage'"),
    ],
)
def test_a_plan_that_cannot_be_made(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_group_tells_what_it_can_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["simulate", "--help"]) == 0
    assert "swarm" in capsys.readouterr().out
