"""A volunteer that learns its text by heart says so."""

from __future__ import annotations

import math

from blockswarm.peer.fit import ROUNDS_UP, FitWatch


def told(*rounds: tuple[float | None, float | None]) -> list[str]:
    watch = FitWatch()
    return [line for loss, heldout in rounds if (line := watch.after(loss, heldout)) is not None]


FALLING = [(3.0 - 0.2 * number, 3.0 - 0.1 * number) for number in range(5)]
"""Training and held-out CE of a training that helps."""

BY_HEART = [(2.0 - 0.1 * number, 2.6 + 0.02 * number) for number in range(1, 20)]
"""Training CE falls on, held-out CE rises."""


def test_as_long_as_both_fall_there_is_nothing_to_say() -> None:
    assert told(*FALLING) == []


def test_held_out_ce_that_rises_for_several_rounds_is_told_once() -> None:
    (line,) = told(*FALLING, *BY_HEART[:15])
    assert "overfitting" in line and "data" in line
    assert f"{ROUNDS_UP} rounds ago" in line


def test_it_is_told_again_when_it_has_got_much_worse() -> None:
    first, second = told(*FALLING, *BY_HEART)
    assert "up to 2.700" in first and "up to 2.960" in second


def test_a_rise_without_falling_training_ce_is_another_trouble() -> None:
    assert told(*FALLING, *((3.0, heldout) for _, heldout in BY_HEART)) == []


def test_scatter_around_a_plateau_is_no_rise() -> None:
    assert told(*FALLING, *((2.0 - 0.1 * number, 2.6 + 0.01 * (number % 3)) for number in range(20))) == []


def test_a_better_evaluation_begins_the_count_again() -> None:
    better = [(0.1, 1.0)]
    assert len(told(*FALLING, *BY_HEART[:15], *better, *((0.05 - 0.01 * n, 1.1) for n in range(ROUNDS_UP + 1)))) == 2


def test_rounds_without_figures_are_passed_over() -> None:
    assert told((None, 2.0), (2.0, None), (math.nan, 2.0), (2.0, math.inf)) == []
