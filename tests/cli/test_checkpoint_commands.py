"""Commands that ask a model in a folder: the figures and texts they print, and what they need for it (no network)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockswarm.cli import export
from blockswarm.cli import main as front
from blockswarm.model.windows import context_rule
from blockswarm.swarm import LocalModel
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.evaluation import evaluate, take_sample
from blockswarm.swarm.model_card import ModelSummary
from blockswarm.swarm.model_writer import write_model_folder
from tests.swarm.test_model_folder import MANIFEST, states

CONTEXT = MANIFEST.model.context


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands") / "model"
    write_model_folder(path, MANIFEST, states())
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "unseen.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert front.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_gives_the_text_of_the_python_face(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = LocalModel.open(folder, device="cpu")
    for readout in ("parallel", "sweep"):
        asked = ("--checkpoint", folder, "--seed", 5, "--max-bytes", 30, "--readout", readout)
        answer = run_json(capsys, "generate", "The ", *asked)
        assert answer["text"] == model.generate("The ", seed=5, max_bytes=30, readout=readout)
        assert (answer["run_id"], answer["seed"], answer["bytes"]) == (MANIFEST.run_id, 5, 30)
        assert answer["pin"] == model.pin.as_json()
        assert front.run(["generate", "The ", *map(str, asked)]) == 0
        assert capsys.readouterr().out == answer["text"] + "\n"


def test_evaluate_says_what_was_measured_and_how(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("evaluate", "--checkpoint", folder, "--data", text, "--part", "all", "--max-bytes", "all")
    figures = run_json(capsys, *asked)
    length = len(text.read_bytes())
    assert (figures["bytes"], figures["of_bytes"]) == (length - 1, length - 1)
    assert figures["context_rule"] == context_rule(CONTEXT)
    assert figures["missing"] == {"parallel": [], "sweep": []} and figures["impossible"] == {}
    sample = take_sample(str(text), context=CONTEXT, whole=True)
    for readout in ("parallel", "sweep"):
        expected = evaluate(LocalModel.open(folder, device="cpu"), sample, readout=readout).score
        assert figures["ce"][readout] == pytest.approx(expected.nats_per_byte, abs=1e-6)
        assert figures["bits_per_byte"][readout] == pytest.approx(expected.bits_per_byte, abs=1e-6)
        assert figures["ci95"][readout] == pytest.approx(expected.ci95, abs=1e-6)
    assert front.run([*map(str, asked)]) == 0
    first, rule, parallel, sweep = capsys.readouterr().out.splitlines()
    assert first == f"{MANIFEST.run_id}, round 5: all {length - 1:,} bytes of {text}"
    assert rule.strip() == context_rule(CONTEXT)
    for line, readout in ((parallel, "parallel"), (sweep, "sweep")):
        assert line.split()[:2] == [readout, f"{figures['ce'][readout]:.4f}"]
        assert "±" in line and line.endswith("bits/byte")


def test_evaluate_takes_a_part_of_a_long_text(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("evaluate", "--checkpoint", folder, "--data", text, "--part", "all", "--readout", "parallel")
    part = run_json(capsys, *asked, "--max-bytes", 1024)
    assert (part["bytes"], part["of_bytes"], part["ci95"]) == (1024, len(text.read_bytes()) - 1, {"parallel": None})
    assert run_json(capsys, *asked)["bytes"] == run_json(capsys, *asked, "--max-bytes", 0)["bytes"] == part["of_bytes"]


def test_the_untrained_model_of_a_folder_is_measured(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("evaluate", "--checkpoint", folder, "--data", text, "--part", "all", "--states", "genesis")
    assert run_json(capsys, *asked)["ce"]["parallel"] == pytest.approx(5.545, abs=0.01)


@pytest.mark.parametrize("command", ["generate", "evaluate"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "nowhere"], "nowhere: no such folder; `blockswarm export` writes a model folder"),
        (["--checkpoint", "."], "not a model folder (swarm.toml is missing)"),
    ],
)
def test_a_folder_that_is_none_is_one_line(
    command: str,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert front.run([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "model", "--peers-file", "peers.txt"], "--checkpoint needs no swarm"),
        (["--checkpoint", "model", "--run", "demo-1"], "--checkpoint needs no swarm"),
        (["--device", "cpu"], "give --checkpoint too"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_a_folder_and_a_swarm_at_once_is_wrong_usage(
    command: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run([command, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_device_that_is_not_there_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["generate", "x", "--checkpoint", str(folder), "--device", "cuda:77"]) == 2
    assert "--device 'cuda:77' cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-1", "many", "1.5"])
def test_a_limit_that_is_none(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["evaluate", "--max-bytes", number]) == 2
    assert "neither a number of bytes nor 'all'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["generate", "x", "--max-bytes", "4"], ["evaluate", "--max-bytes", "100"]])
def test_no_network_is_loaded(folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom blockswarm.cli.main import run\n"
        f"assert run([*{arguments!r}, '--checkpoint', {str(folder)!r}]) == 0\n"
        "print('loaded:', sorted({'libp2p', 'hivemind', 'trio', 'uvloop'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded: []\n")


class Exporting:
    """Stands in for a client of a swarm that has one model."""

    manifest, run_id = MANIFEST, MANIFEST.run_id

    def export(self, folder: Path, *, force: bool, **_: Any) -> ModelSummary:
        return write_model_folder(folder, MANIFEST, states(), force=force)


@pytest.mark.parametrize(("slow", "code"), [(["sweep"], 0), (["parallel", "sweep"], 1)])
def test_an_export_tells_of_its_folder_though_measuring_it_takes_too_long(
    slow: list[str],
    code: int,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    score = LocalModel.score

    def late(self: LocalModel, *arguments: Any, **options: Any) -> Any:
        if options["readout"] in slow:
            raise DeadlineError("600 s were not enough")
        return score(self, *arguments, **options)

    monkeypatch.setattr(LocalModel, "score", late)
    monkeypatch.setattr(export, "connected", lambda *_, **__: contextlib.nullcontext(Exporting()))
    folder = str(tmp_path / "model")
    assert front.run(["export", folder, "--evaluate", "--data", str(text), "--max-bytes", "64", "--json"]) == code
    out, error = capsys.readouterr()
    told = json.loads(out)
    assert told["folder"] == folder and len(told["states"]) == 3
    if code == 0:
        assert told["evaluation"]["ce"]["parallel"] > 0 and told["evaluation"]["ce"]["sweep"] is None
        assert told["evaluation"]["impossible"] == {"sweep": "600 s were not enough"}
    else:
        assert told["evaluation"] is None and "error: 600 s were not enough" in error
