"""`blockswarm count`: the file it writes, what it measures, and the weight it finds; `init` takes both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockswarm.cli import main as front
from blockswarm.model.corpus import open_corpus
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.swarm import LocalModel
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.model_folder import SavedModel, SavedState, read_model_folder
from blockswarm.swarm.model_writer import write_model_folder
from tests.swarm.test_model_folder import MANIFEST

TEXT = "The quick brown fox jumps over the lazy dog. A cat sits on the mat, and it rains. " * 400


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert front.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_training_part_is_counted_and_the_held_out_part_measured(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "counts.ngram"
    asked = ("count", "--data", text, "--order", 5, "--min-count", 2, "--output", output)
    told = run_json(capsys, *asked)
    corpus = open_corpus(str(text), context=128)
    assert output.read_bytes() == build_ngram_file(corpus.train, order=5, min_count=2)
    model = NgramModel.open(output)
    assert told["digest"] == model.digest.hex() and told["bytes"] == model.size
    assert (told["order"], told["min_count"], told["counted_bytes"]) == (5, 2, len(corpus.train))
    assert told["nats_per_byte"] == pytest.approx(-model.byte_log_probs(corpus.heldout).mean())
    assert front.run(list(map(str, asked))) == 2
    assert "exists already" in capsys.readouterr().err


def test_all_of_a_text_is_counted_and_another_measured(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "valid.txt"
    other.write_text("The lazy dog sits on the quick cat. " * 10)
    asked = ("count", "--data", text, "--part", "all", "--order", 3)
    assert run_json(capsys, *asked, "--output", tmp_path / "a.ngram")["nats_per_byte"] is None
    assert run_json(capsys, *asked, "--output", tmp_path / "b.ngram", "--valid", other)["nats_per_byte"] > 0
    whole = build_ngram_file(np.frombuffer(TEXT.encode(), np.uint8), order=3)
    assert (tmp_path / "a.ngram").read_bytes() == (tmp_path / "b.ngram").read_bytes() == whole


def test_the_weight_that_is_found_is_the_best_in_the_mixture(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is the cross-entropy that a folder with these counts and this weight has."""
    folder, output, other = tmp_path / "model", tmp_path / "counts.ngram", tmp_path / "other.txt"
    genesis = [SavedState(subject, MANIFEST.verify_genesis(subject), 0, 0) for subject in MANIFEST.subjects]
    write_model_folder(folder, MANIFEST, genesis)  # knows nothing: the best mixture is the counts, less sure
    other.write_text("It rains, and the fox sits on a lazy cat over the brown mat; the dog jumps quick. " * 20)
    asked = ("count", "--data", text, "--order", 4, "--output", output, "--fit", folder, "--valid", other)
    told = run_json(capsys, *asked)
    fit = told["fit"]
    assert fit["mixed"] < min(fit["blocks"], fit["counts"])
    manifest = tmp_path / "swarm.toml"
    weight = ("--counts-weight", fit["weight"])
    assert run_json(capsys, "init", "--counts", output, *weight, "--output", manifest)["run_id"]
    named = Manifest.load(manifest).counts
    assert named is not None and named.digest == told["digest"] and named.weight == fit["weight"]

    saved = read_model_folder(folder)
    counted = SavedModel(replace(saved.manifest, counts=named), saved.states, NgramModel.open(output))
    read = other.read_bytes()
    score = LocalModel(counted, device="cpu").score(read[1:], given=read[:1])
    assert fit["bytes"] == score.bytes
    assert fit["mixed"] == pytest.approx(score.nats_per_byte, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--order", "9"), "order 9: must lie between 1 and 8"),
        (("--min-count", "0"), "min_count 0"),
        (("--max-mb", "0"), "--max-mb 0: must be a positive number"),
        (("--data", "no/such/file"), "no such file or folder"),
        (("--fit", "no/such/folder"), "no/such/folder/swarm.toml: cannot read the manifest"),
    ],
)
def test_what_cannot_be_counted_is_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(["count", "--output", str(tmp_path / "out.ngram"), *arguments]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--counts", "FILE"), "--counts FILE and --counts-weight W belong together"),
        (("--counts-weight", "0.5"), "belong together"),
        (("--counts", "FILE", "--counts-weight", "1.5"), "--counts-weight 1.5: must lie between 0 and 1"),
        (("--counts", "no/such", "--counts-weight", "0.5"), "--counts no/such: cannot be read"),
    ],
)
def test_a_manifest_takes_a_file_and_a_weight_or_neither(
    arguments: tuple[str, ...], words: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.ngram"
    file.write_bytes(build_ngram_file(np.frombuffer(TEXT.encode(), np.uint8), order=2))
    given = [str(file) if one == "FILE" else one for one in arguments]
    assert front.run(["init", *given, "--output", str(tmp_path / "swarm.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "swarm.toml").exists()
