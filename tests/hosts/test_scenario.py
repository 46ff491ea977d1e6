"""Scenario files: what they say, what happens, and what is wrong with them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import HostsError, Link, World
from benchmarks.hosts.scenario import Scenario, play

ROOT = Path(__file__).parents[2]

STORY = """
hosts = 3
seed = 4
[link]
delay_ms = 5
rate_mbit = 10

[[event]]
at = 0
between = [0, 1]
link = {delay_ms = 20}

[[event]]
at = 0.1
cut = [1, 2]

[[event]]
at = 0.2
host = 2
uplink = {rate_mbit = 1}

[[event]]
at = 0.3
heal = "all"

[[run]]
at = 0.1
host = 1
command = ["PYTHON", "-c", "import os, sys; sys.exit(sys.argv[1] != os.environ['HOST_1'])", "$HOST_1"]
""".replace("PYTHON", sys.executable)

ENDLESS = """
hosts = 2
seconds = 0.3
[[run]]
host = 1
command = ["sleep", "60"]
"""


def load(folder: Path, text: str) -> Scenario:
    path = folder / "story.toml"
    path.write_text(text)
    return Scenario.load(path)


def test_a_file_says_what_the_lines_are_and_what_happens(tmp_path: Path) -> None:
    scenario = load(tmp_path, STORY)
    assert (scenario.hosts, scenario.seconds, scenario.seed) == (3, None, 4)
    assert scenario.link == Link(delay_ms=5, rate_mbit=10)
    assert [str(event) for event in scenario.event] == [
        "between (0, 1); link 20 ms",
        "cut (1, 2)",
        "host 2; uplink 1 Mbit/s, queue 65536 bytes",
        "heal all",
    ]


def test_a_scenario_is_played_until_its_last_process_has_ended(build: Callable[..., World], tmp_path: Path) -> None:
    said: list[str] = []
    result = play(load(tmp_path, STORY), said.append)
    told = "\n".join(said)
    story = ("between (0, 1)", "cut (1, 2)", "uplink 1 Mbit/s", "heal all")
    places = [told.index(what) for what in story]
    assert places == sorted(places)
    assert "ended with exit code 0" in told
    (process,) = result["processes"]
    assert (process["host"], process["code"]) == (1, 0)
    assert {(row["from"], row["to"]) for row in result["traffic"]} == set(itertools.permutations(range(3), 2))
    json.dumps(result)


def test_a_scenario_with_an_end_ends_what_still_runs(build: Callable[..., World], tmp_path: Path) -> None:
    said: list[str] = []
    result = play(load(tmp_path, ENDLESS), said.append)
    assert "host 1: sleep is ended" in said[-1]
    assert result["processes"][0]["code"] is None  # it would have gone on
    assert 0.3 <= result["seconds"] < 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts = \n", "story.toml: .*line 1"),
        ("seconds = 3", "story.toml: hosts: Field required"),
        ("hosts = 2\nhorses = 3", "horses: Extra inputs"),
        ("hosts = 2\nlink = {delay = 3}", "link: .*unexpected keyword argument 'delay'"),
        ("hosts = 2\nlink = {loss = 3}", "link: .*loss is 3"),
        ("hosts = 2\n[[event]]\nat = -1\nheal = 'all'", "event.0.at: .*greater than or equal to 0"),
        ("hosts = 2\n[[event]]\nat = 1", "event.0: .*an event is one of cut.*this is none"),
        ("hosts = 2\n[[event]]\nat = 1\ncut = [0, 1]\nheal = 0", "this is cut, heal"),
        ("hosts = 2\n[[event]]\nat = 1\nlink = {}", "between, link and maybe back belong together"),
        ("hosts = 2\n[[event]]\nat = 1\nuplink = {}", "host belongs to uplink or downlink"),
        ("hosts = 2\n[[event]]\nat = 1\ncut = [0, 2]", "there is no host 2"),
        ("hosts = 2\n[[run]]\nhost = -1\ncommand = ['true']", "there is no host -1"),
        ("hosts = 2\n[[run]]\nhost = 0\ncommand = []", "run.0.command: .*at least 1 item"),
        ("hosts = 2\nseconds = 3\n[[event]]\nat = 3.5\nheal = 0", "happens at 3.5, after the end: seconds is 3"),
        ("hosts = 1\nseconds = 3\n[[run]]\nat = 9\nhost = 0\ncommand = ['true']", "happens at 9, after the end"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HostsError, match=said) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match=r"none\.toml: No such file"):
        Scenario.load(tmp_path / "none.toml")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m benchmarks.hosts`` as in a checkout."""
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.hosts", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_command_runs_on_a_host_and_its_exit_code_counts(build: Callable[..., World]) -> None:
    words = ["import sys; print('at', sys.argv[1]); sys.exit(7)", "$HOST_1"]
    done = command("exec", "--hosts", "2", "--delay-ms", "10", "--json", "--", sys.executable, "-c", *words)
    assert done.returncode == 7, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "at 10.77.0.2"
    result: dict[str, Any] = json.loads(printed[-1])
    assert result["processes"][0]["code"] == 7
    assert "ended with exit code 7" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "--host", "5"], "there is no host 5: hosts are numbered from 0 to 1"),
        (["exec", "--seconds", "-1"], "seconds: Input should be greater than or equal to 0"),
        (["exec", "--seconds", "nan"], "seconds: Input should be a finite number"),
        (["exec", "--loss", "nan"], "loss is nan: it must lie between 0 and 1"),
        (["measure", "--seconds", "0"], "seconds is 0: a stream must be measured for some time"),
        (["measure", "--seconds", "nan"], "seconds is nan: a stream must be measured for some time"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], said: str) -> None:
    done = command(*words, *(["--", "true"] if words[0] == "exec" else []))
    assert (done.returncode, done.stderr) == (1, f"error: {said}\n")
