"""The halves of the comparison that need no hosts: the simulated one, and the judgement."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.validate_simulator import SCENARIOS, Figures, Real, compare, manifest_of, simulate
from blockswarm.dht.identity import Identity

ROUNDS, FIRST = 8, 5
MIDDLE = FIRST + ROUNDS // 2


@pytest.fixture(scope="module")
def ids() -> list[str]:
    return [Identity.ephemeral().peer_id for _ in range(6)]


def simulated(ids: list[str], name: str) -> Figures:
    manifest = manifest_of(12.0)
    real: Any = SimpleNamespace(
        swarm=SimpleNamespace(manifest=manifest),
        ids=ids,
        blocks=[number % 2 for number in range(6)],
        scenario=SCENARIOS[name],
        speed=lambda: 200.0,
    )
    return simulate(cast(Real, real), FIRST, ROUNDS, MIDDLE, (MIDDLE - 1) * 12.0 + 0.5)


def test_one_slow_line_is_late_in_every_round(ids: list[str]) -> None:
    figures = simulated(ids, "slow-line")
    # Four rounds of six, of whom five are in time; the round of the departure does not count; three of five.
    assert figures.participation == pytest.approx((4 * 5 + 3 * 4) / (4 * 6 + 3 * 5), abs=0.1)
    assert figures.commits <= 2 * 7
    assert figures.wire_bytes > figures.bytes > 0


def test_two_slow_lines_take_participation_under_four_fifths(ids: list[str]) -> None:
    assert simulated(ids, "two-slow").participation < 0.8


def test_differences_are_judged_by_their_bounds() -> None:
    real = Figures(participation=0.75, round_s=4.0, bytes=1e8, wire_bytes=2e8, commits=14)
    near = compare(real, replace(real, participation=0.79, round_s=4.5, bytes=0.9e8, wire_bytes=1.0))
    assert all(row.get("within", True) for row in near.values())
    far = compare(real, replace(real, participation=0.69, round_s=5.0))
    assert [name for name, row in far.items() if not row.get("within", True)] == ["participation", "round_s"]
