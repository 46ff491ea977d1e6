"""The commands that ask a swarm, and the demo, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockswarm.peer.local import LocalSwarm, model_of

pytestmark = pytest.mark.integration

ANSWER_SECONDS = 60.0


@pytest.fixture(scope="module")
def swarm() -> Iterator[LocalSwarm]:
    """A bootstrap node and one volunteer of a model with one block."""
    with LocalSwarm(model=model_of("tiny", 1), round_seconds=8.0) as swarm:
        swarm.start_bootstrap()
        volunteer = swarm.start_volunteer(0)
        volunteer.wait_event("round", lambda event: event["committed"], timeout=90)
        yield swarm


def ask(swarm: LocalSwarm, *arguments: str) -> Any:
    """The JSON answer of a command; default options find ``bootstrap_peers.txt`` in the working folder."""
    done = swarm.command(*arguments, "--json", timeout=ANSWER_SECONDS)
    return json.loads(done.stdout)


@pytest.mark.timeout(240)
def test_status_lists_who_holds_what(swarm: LocalSwarm) -> None:
    answer = ask(swarm, "status")
    assert answer["run_id"] == swarm.manifest.run_id
    (block,) = answer["blocks"]
    (holder,) = block["holders"]
    ready = swarm.volunteers()[0].wait_event("ready", timeout=1)
    assert holder["peer_id"] == ready["peer_id"]
    assert holder["rounds"]
    text = swarm.command("status", timeout=ANSWER_SECONDS).stdout
    assert text.startswith(f"{swarm.manifest.run_id}: round ")
    assert holder["peer_id"] in text


def test_generate_continues_a_text_and_the_seed_repeats_it(swarm: LocalSwarm) -> None:
    first = ask(swarm, "generate", "The ", "--max-bytes", "24", "--seed", "5", "--temperature", "0")
    assert first["prompt"] == "The "
    assert 1 <= len(first["text"]) <= 24
    assert first["bytes"] == 24
    assert (first["seed"], first["missing"]) == (5, [])
    streamed = swarm.command("generate", "The ", "--max-bytes", "24", timeout=ANSWER_SECONDS).stdout
    assert streamed.endswith("\n") and len(streamed) > 1


def test_generate_reads_a_prompt_from_standard_input(swarm: LocalSwarm) -> None:
    done = swarm.module(
        "blockswarm", "generate", "-", "--max-bytes", "4", "--json", timeout=ANSWER_SECONDS, given="If the "
    )
    assert json.loads(done.stdout)["prompt"] == "If the "


def test_evaluate_measures_both_readouts(swarm: LocalSwarm, tmp_path: Path) -> None:
    answer = ask(swarm, "evaluate", "--max-bytes", "1024")
    ce = answer["ce"]
    assert ce.keys() == {"parallel", "sweep"}
    assert all(1.0 < value < 5.5 for value in ce.values())
    unseen = tmp_path / "unseen.txt"
    unseen.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    text = swarm.command("evaluate", "--data", str(unseen), "--part", "all", timeout=ANSWER_SECONDS).stdout
    first, rule, parallel, sweep = text.splitlines()
    assert first.startswith(f"{swarm.manifest.run_id}, round") and first.endswith(f": all 449 bytes of {unseen}")
    assert rule.startswith("  windows of ")
    assert [line.split()[0] for line in (parallel, sweep)] == ["parallel", "sweep"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--run", "other-000000000000"], "other-000000000000"),
        (["generate", "x", "--readout", "sideways"], "sideways"),
        (["generate", "x", "--temperature", "-1"], "temperature"),
        (["evaluate", "--data", "missing.txt"], "missing.txt"),
        (["status", "--peers-file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_a_mistake_is_one_line(swarm: LocalSwarm, arguments: list[str], words: str) -> None:
    done = swarm.command(*arguments, timeout=ANSWER_SECONDS, check=False)
    assert done.returncode in (1, 2)
    assert words in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
def test_the_demo_reports_what_it_measured_and_leaves_nothing(tmp_path: Path) -> None:
    arguments = ["--peers", "2", "--blocks", "1", "--seconds", "30", "--json", "--keep-dir", str(tmp_path / "demo")]
    done = subprocess.run(
        [sys.executable, "-m", "blockswarm", "demo", *arguments], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["peers"], result["blocks"]) == (2, 1)
    assert result["ce_initial"] == pytest.approx(5.545, abs=0.05)
    assert result["ce_final"] < result["ce_initial"]
    assert result["rounds_committed"][0] >= 1
    # How good these are depends on how busy this machine is; the demo run for two minutes is where they are judged.
    assert all(0 < result[share] <= 1 for share in ("participation", "commit_rate", "digest_agreement"))
    assert result["text"].startswith("The ")
    assert result["holders"][0] in (1, 2)
    assert result["leftover_processes"] == 0
    assert (tmp_path / "demo" / "swarm.toml").exists()
