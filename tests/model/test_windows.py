from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.windows import plan_windows, window_start


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
