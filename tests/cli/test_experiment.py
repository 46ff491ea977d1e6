"""``blockswarm experiment`` as a user runs it: real processes, stopped and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

QUICK = ["--size", "smoke", "--seeds", "0", "--steps", "1", "--eval-bytes", "300"]


def blockswarm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = "from blockswarm.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=110
    )


def test_the_list_names_every_experiment_and_its_question(tmp_path: Path) -> None:
    listed = blockswarm("experiment", "list", cwd=tmp_path)
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert {"readouts", "sigma-range", "progression", "depth", "long", "shared", "leakage", "replicas"} <= set(names)
    assert {"compression", "levers", "relay", "budget"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["guess"], "no experiment 'guess'; there are"),
        (["relay", "--size", "huge"], "no size 'huge'; there are tiny, small, base, smoke"),
        (["relay", "--data", "nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["relay", "--seeds", "a,b"], "is not a list of whole numbers"),
        (["report"], "holds no figures"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    refused = blockswarm("experiment", *arguments, cwd=tmp_path)
    assert refused.returncode != 0
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_run_writes_figures_a_page_and_a_model_that_can_be_asked(tmp_path: Path) -> None:
    made = blockswarm("experiment", "relay", *QUICK, "--json", "--save", "model", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    printed = json.loads(made.stdout.splitlines()[-1])
    assert printed["parallel (no relay)"]["seeds"] == [0]
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        ".cache",
        "relay.csv",
        "relay.json",
        "relay.md",
        "relay.png",
    }
    page = blockswarm("experiment", "report", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "![Relay](results/relay.png)" in (tmp_path / "results.md").read_text()
    text = blockswarm("generate", "--checkpoint", "model", "--max-bytes", "5", "--seed", "1", "The ", cwd=tmp_path)
    assert text.returncode == 0, text.stderr


def test_ctrl_c_ends_every_process_and_resuming_gives_the_same_figures(tmp_path: Path) -> None:
    arguments = [
        "experiment",
        "leakage",
        "--size",
        "smoke",
        "--seeds",
        "0",
        "--steps",
        "40",
        "--eval-bytes",
        "300",
        "--json",
    ]
    whole = blockswarm(*arguments, "--output", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    code = "from blockswarm.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--output", "cut", "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "done" in first, first + process.stderr.read()
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert time.monotonic() - begun < 30
    assert list((tmp_path / "cut" / ".cache").glob("training-*")), "what had ended is kept"
    resumed = blockswarm(*arguments, "--output", "cut", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1]) == json.loads(whole.stdout.splitlines()[-1])
