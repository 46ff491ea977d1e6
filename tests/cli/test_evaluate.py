"""What ``blockswarm evaluate`` and ``export`` say to people, of figures that are made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockswarm.cli import evaluate, export
from blockswarm.model.scoring import TextScore
from blockswarm.swarm.errors import DeadlineError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.evaluation import Evaluation, Sample
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.model_card import ModelSummary, StateSummary, model_card

SAMPLE = Sample("docs", "heldout", bytes(5000), [(1, 1025), (2000, 3024)])
MANIFEST = create_manifest(name="demo", now=0.0)


def lines(measured: Any, failed: Any) -> list[str]:
    return evaluate.lines("demo-1", SAMPLE, 128, measured, failed)[2:]


def test_what_was_measured_stands_first() -> None:
    first, second = evaluate.lines("demo-1", SAMPLE, 128, {}, {})
    assert first == "demo-1: 2,048 of 4,999 bytes, 2 stretches spread evenly over the held-out part of docs"
    assert second.strip().startswith("windows of 128 bytes that jump by 64: each byte is predicted from the 65 to 128")


def test_the_rounds_of_the_states_are_told() -> None:
    def first(*rounds: int) -> str:
        states = {"blocks": {str(block): {"round": number} for block, number in enumerate(rounds)}}
        one = Evaluation(SAMPLE, TextScore(2.0, 2048, 0.05), states=states)
        return evaluate.lines("demo-1", SAMPLE, 128, {"parallel": one}, {})[0].partition(": ")[0]

    assert (first(7, 7), first(8, 7)) == ("demo-1, round 7", "demo-1, rounds 7 to 8")


def test_figures_in_nats_and_bits_with_their_interval() -> None:
    one = Evaluation(SAMPLE, TextScore(2.0, 2048, 0.05))
    assert lines({"parallel": one}, {}) == ["  parallel  2.0000 ± 0.0500 nats/byte, 2.8854 ± 0.0721 bits/byte"]


def test_a_block_that_is_missing_is_named_with_both_readouts() -> None:
    one = Evaluation(SAMPLE, TextScore(2.0, 100, None), missing=(1,))
    assert lines({"parallel": one}, {"sweep": NoHolderError(1)}) == [
        "  parallel  2.0000 nats/byte, 2.8854 bits/byte, without block 1, which nobody serves",
        "  sweep     impossible: it goes through every block, and nobody serves block 1",
    ]
    values = evaluate.as_values(SAMPLE, 128, {"parallel": one}, {"sweep": NoHolderError(1)})
    assert values["ce"] == {"parallel": 2.0, "sweep": None}
    assert values["missing"] == {"parallel": [1], "sweep": None}
    assert values["impossible"]["sweep"].startswith("no live holder of block 1")


def test_other_reasons_are_told_as_they_are() -> None:
    (line,) = lines({}, {"sweep": UntrustedAnswerError("block 2: every holder's answer breaks the rules")})
    assert line == "  sweep     impossible: block 2: every holder's answer breaks the rules"


def test_what_takes_too_long_is_not_called_impossible() -> None:
    (line,) = lines({}, {"sweep": DeadlineError("600 s were not enough: 10 of 100 bytes read")})
    assert line == "  sweep     not measured: 600 s were not enough: 10 of 100 bytes read"


def test_states_that_changed_in_the_middle_are_pointed_out() -> None:
    (line,) = lines({"parallel": Evaluation(SAMPLE, TextScore(2.0, 100, None), repinned=1)}, {})
    assert line.endswith("of a mixture of states: the swarm let go of those it was begun with")


STATES = tuple(
    StateSummary(subject, f"file-{subject}", 1000, 4400, 9, 640, bytes([subject + 1]) * 32, *signed)
    for subject, signed in ((-1, (0, 0)), (0, (2, 3)))
)
SUMMARY = ModelSummary(Path("models/demo"), MANIFEST, STATES)


def test_an_export_lists_its_files() -> None:
    first, embedding, block = export.lines(SUMMARY)
    assert first == "wrote models/demo: 2,000 parameters in 0.0 MB"
    assert embedding.split() == ["file--1", "round", "9,", "640", "samples,", "uncertified,", "000000000000"]
    assert block.endswith("round 9, 640 samples, certified by 2 of 3, 010101010101")


def test_a_card_has_the_figures_that_were_measured() -> None:
    measured = {"parallel": Evaluation(SAMPLE, TextScore(2.0, 2048, 0.05))}
    card = model_card(SUMMARY, measured)
    assert "| parallel | 2048 | 2.0000 | 2.8854 | ± 0.0500 |" in card
    assert "2,048 of 4,999 bytes, 2 stretches spread evenly over the held-out part of docs" in card
    assert "tiny: transformer, 3 blocks of 2 layers, width 96, context 128 bytes" in card
    assert "| recipe | default |" in card and "--checkpoint demo" in card
