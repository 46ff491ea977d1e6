"""Cells of the fault matrix: whatever one replica does, the others agree, in time, and say who it was.

What each cell expects stands in ``tests/faults/table.py``. One swarm of real hosts serves all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.faults.__main__ import BY_NAME, failures, figures, pace
from tests.faults.cell import Outcome, run_cell
from tests.faults.swarm import running_swarm
from tests.faults.table import SUITE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """What the cells that have run showed."""
    return []


@pytest.fixture(scope="module")
def run(outcomes: list[Outcome]) -> Iterator[Callable[[str], Outcome]]:
    """Runs a cell by its name."""
    with asyncio.Runner() as runner:
        world = running_swarm(pace())
        swarm = runner.run(world.__aenter__())

        def one(name: str) -> Outcome:
            outcomes.append(outcome := runner.run(run_cell(swarm, BY_NAME[name])))
            return outcome

        yield one
        runner.run(world.__aexit__(None, None, None))


@pytest.mark.parametrize("name", SUITE)
def test_one_state_in_time_and_the_culprit_named(name: str, run: Callable[[str], Outcome]) -> None:
    assert run(name).broken == []


def test_rounds_with_a_minority_at_fault_commit_and_those_after_them(outcomes: list[Outcome]) -> None:
    if not outcomes:
        pytest.skip("no cell has run")
    assert failures(figures(outcomes)) == []
