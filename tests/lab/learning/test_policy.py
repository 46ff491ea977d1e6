"""Names of policies, and when an elastic worker sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.lab.errors import LabUsageError
from blockswarm.lab.learning.policy import Policy, policy_from, snapshot_at


def test_a_name_says_everything() -> None:
    assert policy_from("fixed-8") == Policy("fixed-8", 8, "none", "drop")
    assert policy_from("elastic") == Policy("elastic", None, "none", "drop")
    assert policy_from("elastic+int4") == Policy("elastic+int4", None, "int4", "drop")
    assert policy_from("fixed-20+carry+int8") == Policy("fixed-20+carry+int8", 20, "int8", "carry")


@pytest.mark.parametrize("name", ["fixed", "fixed-0", "fixed-", "elastic-3", "elastic+zip", "elastic+int4+int8",
                                  "elastic+carry+carry", "", "fixed-9999999"])  # fmt: skip
def test_another_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(LabUsageError, match=r"must be fixed-<steps> or elastic, with \+carry"):
        policy_from(name)


def test_a_slower_line_sends_earlier_and_one_that_does_not_fit_at_once() -> None:
    assert snapshot_at(3.0, [0.2]) > snapshot_at(3.0, [0.8]) > 0.0
    assert snapshot_at(3.0, [2.9]) == 0.0


def test_a_line_that_never_varies_is_trusted_more_with_every_round() -> None:
    early, late = snapshot_at(3.0, [1.0] * 2), snapshot_at(3.0, [1.0] * 40)
    assert early < late < 2.0
    assert snapshot_at(3.0, [0.5, 2.0] * 10) < early  # and one that does vary, less


@given(st.floats(0.01, 1e4), st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=20))
def test_a_snapshot_lies_within_the_round(deadline: float, uploads: list[float]) -> None:
    assert 0.0 <= snapshot_at(deadline, uploads) <= deadline
