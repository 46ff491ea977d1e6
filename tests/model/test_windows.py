from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.windows import context_rule, plan_windows, shared, window_start


@given(position=st.integers(0, 10_000), context=st.integers(1, 300))
def test_a_row_lies_in_its_window_with_half_a_context_behind_it(position: int, context: int) -> None:
    start = window_start(position, context)
    assert start <= position < start + context
    if position >= context:
        assert position - start >= context - max(1, context // 2)


@given(length=st.integers(0, 2_000), context=st.integers(1, 300))
def test_a_plan_covers_every_row_once_from_the_window_everyone_uses(length: int, context: int) -> None:
    rows: list[int] = []
    for start, stop, take_from in plan_windows(length, context):
        assert 0 < stop - start <= context
        assert stop <= length
        rows += range(start + take_from, stop)
        assert all(window_start(row, context) == start for row in range(start + take_from, stop))
    assert rows == list(range(length))


def test_windows_jump_by_half_a_context() -> None:
    assert plan_windows(20, 8) == [(0, 8, 0), (4, 12, 4), (8, 16, 4), (12, 20, 4)]
    assert [window_start(p, 8) for p in (0, 7, 8, 11, 12)] == [0, 0, 4, 4, 8]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ModelError):
        window_start(-1, 8)
    with pytest.raises(ModelError):
        window_start(3, 0)


@pytest.mark.parametrize("context", [1, 2, 5, 8])
def test_a_part_of_a_text_is_read_in_the_windows_of_the_whole(context: int) -> None:
    for first in range(30):
        rows = []
        for start, stop, take in plan_windows(30, context, first):
            assert all(window_start(row, context) == start for row in range(start + take, stop))
            rows += range(start + take, stop)
        assert rows == list(range(first, 30))


@pytest.mark.parametrize(("context", "seen"), [(128, "65 to 128"), (7, "5 to 7"), (1, "1")])
def test_the_rule_in_words_is_the_rule(context: int, seen: str) -> None:
    assert f"predicted from the {seen} bytes before it" in context_rule(context)
    depths = {row - window_start(row, context) + 1 for row in range(context, 10 * context)}
    assert seen == (f"{min(depths)} to {max(depths)}" if len(depths) > 1 else str(min(depths)))


@given(st.binary(max_size=6), st.binary(max_size=6), st.binary(max_size=6))
def test_shared_is_how_far_two_texts_agree(both: bytes, one: bytes, other: bytes) -> None:
    size = shared(both + one, both + other)
    assert size >= len(both) and (both + one)[:size] == (both + other)[:size]
    assert (both + one)[size : size + 1] != (both + other)[size : size + 1] or size == len(both + one)
