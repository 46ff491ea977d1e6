"""docs/operations.md names every field that programs read: of ``--json`` and of the event log."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from blockswarm.peer.demo import DemoResult
from blockswarm.peer.report import round_event
from blockswarm.swarm.model_card import StateSummary
from blockswarm.swarm.operations import Holder
from blockswarm.swarm.report import CallReport
from blockswarm.swarm.status import BlockStatus, HeldState, RoundReport, SwarmStatus

ROOT = Path(__file__).parents[1]
SHAPES = [DemoResult, CallReport, SwarmStatus, BlockStatus, HeldState, RoundReport, Holder, StateSummary]
PAGE = (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_field_of_a_json_answer_is_explained(shape: Any) -> None:
    assert [field.name for field in fields(shape) if f"`{field.name}`" not in PAGE] == []


def test_every_field_of_a_round_is_explained() -> None:
    names = re.findall(r'^ +"(\w+)":', inspect.getsource(round_event), re.MULTILINE)
    table = PAGE.partition("A `round` event")[2].partition("\n\n##")[0]
    assert "heldout_ce" in names
    assert [name for name in names if name != "event" and f"`{name}`" not in table] == []


def test_every_event_is_listed() -> None:
    source = "".join(path.read_text() for path in (ROOT / "peer").glob("*.py"))
    events = set(re.findall(r'"event": "(\w+)"', source))
    assert "round" in events
    assert [event for event in sorted(events) if f"`{event}`" not in PAGE] == []
