"""A model in a folder: the same names, options and rules as a client of the swarm, and nothing of its network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blockswarm.model.scoring import score_of
from blockswarm.swarm import LocalModel
from blockswarm.swarm.errors import ArgumentError, DeadlineError
from blockswarm.swarm.model_writer import write_model_folder
from tests.model.reference import next_byte_log_probs
from tests.swarm.test_model_folder import MANIFEST, states

TEXT = "Ein Wald aus Zeichen – näher betrachtet sind es Bäume, 数百本の木。" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "model"
    write_model_folder(path, MANIFEST, states())
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> LocalModel:
    return LocalModel.open(folder, device="cpu")


def test_it_knows_what_it_is(model: LocalModel) -> None:
    assert model.manifest == MANIFEST and model.run_id == MANIFEST.run_id
    assert model.pin.blocks[1].digest == states()[2].digest


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_a_seed_means_one_text_whole_or_in_pieces(model: LocalModel, readout: str) -> None:
    options = {"max_bytes": 80, "seed": 3, "temperature": 1.0, "readout": readout}
    whole = model.generate("The ", **options)
    pieces = list(model.stream(b"The ", **options))
    assert "".join(pieces) == whole and len(pieces) > 10
    assert whole != model.generate("The ", **{**options, "seed": 4})
    last = model.stats.last
    assert last is not None and (last.call, last.seed, last.bytes, last.missing) == ("generate", 4, 80, [])
    assert last.pin == model.pin.as_json()


def test_a_drawn_seed_is_reported_and_an_empty_prompt_stands_for_a_newline(model: LocalModel) -> None:
    text = model.generate(max_bytes=20)
    assert model.stats.last is not None
    assert model.generate("\n", max_bytes=20, seed=model.stats.last.seed) == text
    assert model.generate("x", max_bytes=0) == ""


def test_text_ends_before_a_stop_string(model: LocalModel) -> None:
    whole = model.generate("a", max_bytes=60, seed=11)
    mark = next(letter for letter in whole[20:] if letter.isascii())
    assert model.generate("a", max_bytes=60, seed=11, stop=["never seen", mark]) == whole.split(mark)[0]


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_log_probabilities_are_normalised_and_scored_ones_are_among_them(model: LocalModel, readout: str) -> None:
    text = b"\n" + TEXT.encode()
    table = model.logprobs(text, readout=readout, seed=5)
    assert table.shape == (len(text), 256) and table.dtype == np.float32
    np.testing.assert_allclose(np.logaddexp.reduce(table.astype(np.float64), axis=1), 0.0, atol=1e-4)
    score = model.score(TEXT, readout=readout, seed=5)
    targets = np.frombuffer(text, np.uint8)[1:]
    np.testing.assert_allclose(score.log_probs, table[np.arange(len(targets)), targets], atol=1e-5)
    assert score.bytes == len(targets) and score.missing == ()
    assert score.nats_per_byte == pytest.approx(-score.log_probs.mean())


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_a_part_of_a_text_is_scored_as_it_is_within_the_whole(model: LocalModel, readout: str) -> None:
    whole = model.score(TEXT, readout=readout)
    spans = [(0, 1), (5, 40), (40, 41), (100, whole.bytes)]
    part = model.score(TEXT, spans=spans, readout=readout)
    expected = np.concatenate([whole.log_probs[begin:end] for begin, end in spans])
    np.testing.assert_allclose(part.log_probs, expected, atol=1e-5)


def test_the_figure_is_that_of_the_plain_rule(model: LocalModel) -> None:
    """`model.scoring` states how a text is scored; an experiment that uses it gets the same number."""
    text = np.frombuffer(TEXT.encode(), np.uint8)
    expected = score_of(next_byte_log_probs(model._model.predictor("parallel"), text, MANIFEST.model.context))
    found = model.score(text[1:].tobytes(), given=text[:1].tobytes())
    assert found.nats_per_byte == pytest.approx(expected.nats_per_byte, abs=1e-6)
    assert found.bytes == expected.bytes


def test_the_untrained_model_can_be_asked_too(model: LocalModel) -> None:
    # It predicts nothing yet: every byte is as likely as any other.
    assert model.score(TEXT, pin="genesis").nats_per_byte == pytest.approx(np.log(256), abs=1e-4)
    assert model.score(TEXT).nats_per_byte != pytest.approx(np.log(256), abs=1e-2)
    assert model.stats.last is not None and model.stats.last.pin == model.pin.as_json()
    pin = model.pin.as_json()
    assert model.generate("x", max_bytes=5, seed=1, pin=pin) == model.generate("x", max_bytes=5, seed=1)
    pin["embedding"] = {"round": 9, "digest": "00" * 32}
    with pytest.raises(ArgumentError, match="this folder holds other states"):
        model.generate("x", pin=pin)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"temperature": -1}, "temperature"), ({"readout": "magic"}, "readout"), ({"timeout": 0}, "timeout")],
)
def test_options_out_of_range_are_refused_as_the_client_refuses_them(
    model: LocalModel, options: dict[str, object], name: str
) -> None:
    with pytest.raises(Exception, match=name):
        model.stream("x", **options)


def test_impossible_texts_and_spans_are_refused(model: LocalModel) -> None:
    with pytest.raises(ArgumentError, match="empty text"):
        model.logprobs(b"")
    for spans in ([(3, 3)], [(0, 99)], [(-1, 2)]):
        with pytest.raises(ArgumentError, match="within the 9 bytes"):
            model.score("some text", spans=spans)
    with pytest.raises(ArgumentError, match="must not overlap"):
        model.score("some text", spans=[(0, 4), (3, 6)])
    assert model.score("").bytes == 0


def test_time_that_is_up_says_how_far_it_got(model: LocalModel) -> None:
    with pytest.raises(DeadlineError, match=r"1e-09 s were not enough: 1 of 50 bytes written"):
        model.generate("x", max_bytes=50, timeout=1e-9)
    with pytest.raises(DeadlineError, match=rf"not enough: \d+ of {20 * len(TEXT.encode())} bytes read"):
        model.score(TEXT * 20, timeout=1e-9)


def test_progress_is_told(model: LocalModel) -> None:
    seen: list[tuple[int, int]] = []
    model.score(TEXT, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (len(TEXT.encode()),) * 2


def test_no_network_is_loaded(folder: Path) -> None:
    code = f"""
import json, sys
from blockswarm.swarm import LocalModel
with LocalModel.open({str(folder)!r}) as model:
    text = model.generate("The ", max_bytes=8, seed=1)
print(json.dumps([text, sorted({{"libp2p", "hivemind", "trio"}} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    text, loaded = json.loads(done.stdout)
    assert text and loaded == []
