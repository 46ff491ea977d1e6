"""The matrix of exact texts meets what it says, and its judge tells a tie that turned from a broken promise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.soak.serving.judge import Outcome, failures, figures, first_difference, markdown
from tests.soak.serving.plan import DISTURBANCES, DRAFTERS, LENGTHS, TEMPERATURES, plan, prompts_from, spread

CELLS = plan(200, seed=0)


def test_every_prompt_meets_every_drafter_and_every_disturbance_at_every_temperature() -> None:
    for what, choices in (("draft", {draft for _, draft in DRAFTERS}), ("disturbance", set(DISTURBANCES))):
        met = {(cell.prompt, cell.temperature, getattr(cell, what)) for cell in CELLS}
        assert met == set(itertools.product(range(200), TEMPERATURES, choices))


def test_drafters_meet_every_disturbance_length_and_readout() -> None:
    for _, draft in DRAFTERS:
        cells = [cell for cell in CELLS if cell.draft == draft]
        assert {cell.disturbance for cell in cells} == set(DISTURBANCES)
        assert {cell.block for cell in cells} == {0, 1}
        if draft != "none":
            assert {cell.length for cell in cells} == set(LENGTHS)
        if draft != "counts":  # a sweep has no counts in it
            assert {(cell.readout, cell.disturbance) for cell in cells} == set(
                itertools.product(("parallel", "sweep"), DISTURBANCES)
            )


def test_a_holder_is_killed_at_every_step_of_a_text() -> None:
    killed = {cell.step for cell in CELLS if cell.disturbance == "killed" and cell.draft == "none"}
    assert killed == set(range(1, 45))


def test_the_plan_is_that_of_its_seed_and_a_share_of_it_is_spread_evenly() -> None:
    assert plan(200, seed=0) == CELLS
    assert [cell.seed for cell in plan(200, seed=1)] != [cell.seed for cell in CELLS]
    pairs = set(itertools.product((draft for _, draft in DRAFTERS), DISTURBANCES))
    assert {(cell.draft, cell.disturbance) for cell in spread(CELLS, 25)} == pairs
    assert len({cell.draft for cell in spread(CELLS, 5)}) == len({cell.disturbance for cell in spread(CELLS, 5)}) == 5
    assert spread(CELLS, 10**6) == CELLS
    assert [cell.world for cell in CELLS] == sorted(cell.world for cell in CELLS)  # each is set up once


def test_prompts_are_odd_ones_and_pieces_of_a_text() -> None:
    text = bytes(range(97, 123)) * 20
    prompts = prompts_from(text, 50, seed=0)
    assert len(prompts) == 50 and b"" in prompts and prompts == prompts_from(text, 50, seed=0)
    assert all(prompt in text and 1 <= len(prompt) <= 96 for prompt in prompts[8:])


@pytest.mark.parametrize(
    ("found", "expected", "place"),
    [(b"abc", b"abc", None), (b"abd", b"abc", 2), (b"ab", b"abc", 2), (b"", b"abc", 0), (b"abcd", b"abc", 3)],
)
def test_the_first_byte_that_differs(found: bytes, expected: bytes, place: int | None) -> None:
    assert first_difference(found, expected) == place


def judged(*outcomes: Outcome) -> list[str]:
    settings = {"settings": {"bytes": 48, "seed": 0}, "seconds": 1.0}
    found = figures(CELLS, {outcome.cell: outcome for outcome in outcomes}) | settings
    assert markdown(found).startswith("# Exact text")
    return failures(found)


def test_one_tie_that_turned_is_no_broken_promise_but_many_are() -> None:
    good = [Outcome(cell.number, 48, round_trips=9) for cell in CELLS]
    tie = replace(good[7], differs_at=3, tie=True, again="same")
    assert judged(*good) == [] and judged(*good, tie) == []
    ties = [replace(tie, cell=number) for number in range(3)]
    assert judged(*good, *ties) == [f"3 ties flipped in {48 * len(CELLS)} bytes"]


def test_other_bytes_lost_states_and_texts_that_ended_in_an_error_are_told() -> None:
    wrong = [
        Outcome(0, 4, differs_at=3),
        Outcome(5, 48, repinned=1),
        Outcome(10, 0, error="NoHolderError: nobody"),
    ]
    told = judged(*wrong)
    assert len(told) == 3
    assert "byte 3 is another one" in told[0] and "states were lost" in told[1] and "nobody" in told[2]
