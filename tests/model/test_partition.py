from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.model.config import RECIPES, Recipe
from blockswarm.model.errors import ModelError
from blockswarm.model.partition import (
    block_of_sigma,
    boundaries,
    interval,
    owned,
    readout_sigma,
    sigma_at,
    sweep_sigmas,
)

PAPER = RECIPES["paper"]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (2, [1, 1.6232, 10]),
        (3, [1, 1.3436, 2.0711, 10]),
        (4, [1, 1.2379, 1.6232, 2.4285, 10]),
    ],
)
def test_boundaries_cut_equal_probability_mass(blocks: int, expected: list[float]) -> None:
    assert [round(cut, 4) for cut in boundaries(PAPER, blocks)] == expected


def test_boundaries_of_the_wide_range() -> None:
    wide = replace(PAPER, sigma_min=0.002, sigma_max=80.0)
    assert [round(cut, 4) for cut in boundaries(wide, 3)] == [0.002, 0.1796, 0.505, 80]


def test_the_overlap_widens_each_interval_and_stops_at_the_range() -> None:
    high_to_low = [interval(PAPER, 3, block) for block in range(3)]
    assert high_to_low[0] == pytest.approx((1.9143, 10.0), abs=1e-4)
    assert high_to_low[1] == pytest.approx((1.3148, 2.1164), abs=1e-4)
    assert high_to_low[2] == pytest.approx((1.0, 1.3636), abs=1e-4)


def test_high_sigma_is_the_first_block() -> None:
    assert owned(PAPER, 3, 0)[1] == PAPER.sigma_max
    assert owned(PAPER, 3, 2)[0] == PAPER.sigma_min
    assert block_of_sigma(PAPER, 3, PAPER.sigma_max) == 0
    assert block_of_sigma(PAPER, 3, PAPER.sigma_min) == 2


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 12])
def test_a_block_is_read_out_where_it_was_trained(blocks: int) -> None:
    sweep = sweep_sigmas(PAPER, blocks)
    assert sweep == sorted(sweep, reverse=True)
    for block in range(blocks):
        assert sweep[block] == readout_sigma(PAPER, blocks, block)
        assert block_of_sigma(PAPER, blocks, sweep[block]) == block
        low, high = interval(PAPER, blocks, block)
        assert low <= sweep[block] <= high


@given(blocks=st.integers(1, 12), data=st.data())
def test_training_draws_of_a_block_belong_to_it(blocks: int, data: st.DataObject) -> None:
    block = data.draw(st.integers(0, blocks - 1))
    u = data.draw(st.floats(0.0, 1.0))
    exact = replace(PAPER, overlap=0.0)
    # A draw at the very lower end is a boundary, which belongs to the neighbour below.
    assert block_of_sigma(exact, blocks, sigma_at(exact, blocks, block, u)) in (block, block + (u < 1e-9))
    low, high = interval(PAPER, blocks, block)
    assert low <= sigma_at(PAPER, blocks, block, u) <= high


def test_draws_follow_the_truncated_log_normal_law() -> None:
    # With one block, a third of the mass must fall into each of the three blocks' intervals.
    draws = [sigma_at(PAPER, 1, 0, (i + 0.5) / 3000) for i in range(3000)]
    counts = [sum(block_of_sigma(PAPER, 3, sigma) == block for sigma in draws) for block in range(3)]
    assert counts == [1000, 1000, 1000]


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelError, match="block 3 does not exist"):
        interval(PAPER, 3, 3)
    with pytest.raises(ModelError, match="outside"):
        block_of_sigma(PAPER, 3, 10.5)
    with pytest.raises(ModelError, match="at least one"):
        boundaries(PAPER, 0)
    with pytest.raises(ModelError, match="p_mean"):
        boundaries(Recipe(p_mean=20.0, p_std=0.05), 3)
