"""Which text is measured, and what is told about it."""

from __future__ import annotations

import itertools
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockswarm.model.corpus import open_corpus
from blockswarm.model.errors import CorpusError
from blockswarm.model.scoring import STRETCH
from blockswarm.swarm.errors import ArgumentError, DeadlineError, NoHolderError
from blockswarm.swarm.evaluation import evaluate, evaluate_each, spread, take_sample
from blockswarm.swarm.report import CallReport, ClientStats
from blockswarm.swarm.score import Score


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    """A file in which every line tells where it stands."""
    path = tmp_path / "numbered.txt"
    path.write_text("".join(f"{number:07d}\n" for number in range(12_500)))
    return str(path)


class Knowing:
    """Stands in for a model: ln p of a byte is minus its place in the text, divided by 1000."""

    def __init__(self, without: int | None = None, lost_pin: bool = False, slow: Container[str] = ()) -> None:
        self._without = without
        self._lost_pin = lost_pin
        self._slow = slow
        self.asked: list[dict[str, Any]] = []
        self.stats = ClientStats()

    def score(self, text: bytes, *, given: bytes = b"", spans: Any = None, **options: Any) -> Score:
        self.asked.append(options)
        if options["readout"] in self._slow:
            raise DeadlineError("5 s were not enough")
        if options["readout"] == "sweep" and self._without is not None:
            raise NoHolderError(self._without)
        if self._lost_pin and options["pin"] is not None:
            raise NoHolderError(0)
        places = np.concatenate([np.arange(begin, end) for begin, end in spans]) + len(given)
        self.stats.last = CallReport("score", options["readout"], pin={"of": "now"}, repinned=2)
        return Score(-places / 1000.0, () if self._without is None else (self._without,))


# -- which bytes ---------------------------------------------------------------------------------------------------


def test_a_corpus_is_measured_on_its_held_out_part(numbered: str) -> None:
    sample = take_sample(numbered, context=128)
    assert sample.text == open_corpus(numbered, context=128).heldout.tobytes()
    assert sample.spans == [(1, len(sample.text))] and sample.whole
    assert str(sample) == f"all {len(sample.text) - 1:,} bytes of the held-out part of {numbered}"


def test_of_a_long_text_evenly_spread_stretches_are_predicted(numbered: str) -> None:
    sample = take_sample(numbered, context=128, max_bytes=8 * STRETCH + 100, whole=True)
    assert sample.text == Path(numbered).read_bytes()
    assert [end - begin for begin, end in sample.spans] == [STRETCH] * 8
    assert sample.spans[0][0] == 1 and sample.spans[-1][1] == len(sample.text)
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(sample.spans)}
    assert max(gaps) - min(gaps) <= 1
    assert str(sample) == f"8,192 of 99,999 bytes, 8 stretches spread evenly over {numbered}"


@pytest.mark.parametrize("length", [2, 50, 5000, 200_000])
@pytest.mark.parametrize("most", [0, 1, 100, STRETCH, 3000, 10**6])
def test_the_limit_holds_and_stretches_lie_apart(length: int, most: int) -> None:
    spans = spread(length, most)
    total = sum(end - begin for begin, end in spans)
    assert total == length - 1 if most == 0 or most >= length - 1 else total <= most
    assert total > most - STRETCH or total == length - 1
    assert spans[0][0] == 1 and spans[-1][1] <= length
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_what_cannot_be_measured_is_named(tmp_path: Path, numbered: str) -> None:
    (tmp_path / "one").write_text("x")
    with pytest.raises(ArgumentError, match="one: holds 1 bytes"):
        take_sample(str(tmp_path / "one"), context=128, whole=True)
    with pytest.raises(ArgumentError, match=r"missing: cannot be read: No such file"):
        take_sample(str(tmp_path / "missing"), context=128, whole=True)
    with pytest.raises(CorpusError, match="missing"):
        take_sample(str(tmp_path / "missing"), context=128)
    with pytest.raises(ArgumentError, match="max_bytes -1: must be"):
        take_sample(numbered, context=128, max_bytes=-1)


# -- the figure ----------------------------------------------------------------------------------------------------


def test_the_bytes_of_the_sample_are_predicted_with_what_stands_before_them(numbered: str) -> None:
    sample = take_sample(numbered, context=128, max_bytes=2 * STRETCH, whole=True)
    result = evaluate(Knowing(), sample)
    places = np.concatenate([np.arange(begin, end) for begin, end in sample.spans])
    assert result.score.nats_per_byte == pytest.approx(places.mean() / 1000.0)
    assert result.score.bytes == 2 * STRETCH == sample.predicted
    assert result.score.ci95 is not None
    assert (result.states, result.repinned, result.missing) == ({"of": "now"}, 2, ())


def test_a_long_text_gets_more_time(numbered: str) -> None:
    model = Knowing()
    sample = take_sample(numbered, context=128, whole=True)
    evaluate(model, sample)
    evaluate(model, sample, timeout=5.0, pin="genesis", seed=4)
    assert [asked["timeout"] for asked in model.asked] == [pytest.approx(99_999 / 50), 5.0]
    assert [(asked["pin"], asked["seed"]) for asked in model.asked] == [(None, 0), ("genesis", 4)]


def test_readouts_are_compared_on_the_same_states_while_the_swarm_keeps_them(numbered: str) -> None:
    sample = take_sample(numbered, context=128, whole=True)
    model = Knowing()
    evaluate_each(model, sample, ["parallel", "sweep"])
    assert [asked["pin"] for asked in model.asked] == [None, {"of": "now"}]
    model = Knowing(lost_pin=True)
    measured, failed = evaluate_each(model, sample, ["parallel", "sweep"])
    assert [asked["pin"] for asked in model.asked] == [None, {"of": "now"}, None]
    assert list(measured) == ["parallel", "sweep"] and not failed
    model = Knowing()
    evaluate_each(model, sample, ["parallel", "sweep"], pin="genesis")
    assert [asked["pin"] for asked in model.asked] == ["genesis"] * 2


def test_a_readout_that_is_impossible_does_not_hide_the_other(numbered: str) -> None:
    sample = take_sample(numbered, context=128, whole=True)
    measured, failed = evaluate_each(Knowing(without=1), sample, ["parallel", "sweep"])
    assert measured["parallel"].missing == (1,) and list(measured) == ["parallel"]
    assert isinstance(failed["sweep"], NoHolderError) and failed["sweep"].block == 1
    with pytest.raises(NoHolderError, match="block 1"):
        evaluate_each(Knowing(without=1), sample, ["sweep"])


def test_a_readout_that_takes_too_long_does_not_hide_the_other_and_is_not_tried_again(numbered: str) -> None:
    sample = take_sample(numbered, context=128, whole=True)
    model = Knowing(slow=["sweep"])
    measured, failed = evaluate_each(model, sample, ["parallel", "sweep"])
    assert list(measured) == ["parallel"] and isinstance(failed["sweep"], DeadlineError)
    assert [asked["readout"] for asked in model.asked] == ["parallel", "sweep"]
    with pytest.raises(DeadlineError, match="5 s"):
        evaluate_each(Knowing(slow=["parallel", "sweep"]), sample, ["parallel", "sweep"])
