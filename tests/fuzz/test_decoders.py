"""Whatever bytes a stranger sends, a decoder gives a value or its own error: in bounded memory, in bounded time."""

from __future__ import annotations

import logging
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.every import TARGETS
from tests.fuzz.strategies import hostile, inputs
from tests.fuzz.target import MIB

REGRESSIONS = Path(__file__).with_name("regressions")
"""What was found once, one file an input, in a folder for each target."""

MOST_SECONDS = 3.0
"""Processor time for one input. The slowest takes a tenth of it; this machine may be a slow one."""

every_target = pytest.mark.parametrize("name", TARGETS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Decoders may log what they pass over."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@every_target
def test_good_inputs_are_accepted(name: str) -> None:
    target = TARGETS[name]
    assert any(target.run(seed) for seed in target.seeds())


@every_target
@settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_input_is_a_value_or_the_decoders_own_error(name: str, data: st.DataObject) -> None:
    TARGETS[name].run(data.draw(inputs(TARGETS[name])))


@every_target
def test_hostile_inputs_cost_little(name: str) -> None:
    target = TARGETS[name]
    target.run(target.seeds()[0])  # what is made once and kept is not the input's doing
    for what, data in hostile(target):
        began = time.process_time()
        target.run(data)
        spent = time.process_time() - began
        assert spent < MOST_SECONDS, f"{what}: {spent:.1f} s"


@every_target
def test_hostile_inputs_take_no_more_memory_than_stated(name: str) -> None:
    target = TARGETS[name]
    target.run(target.seeds()[0])
    tracemalloc.start()
    try:
        for what, data in hostile(target):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            target.run(data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < target.memory, f"{what}: {taken / MIB:.1f} MiB"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_stays_mended(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
