"""Advice that follows from what is asked."""

from __future__ import annotations

import pytest

from blockswarm.swarm.simulation import plan
from blockswarm.swarm.simulation.parts import ScenarioError
from blockswarm.swarm.simulation.plan import PlanError, make_plan, replicas_for
from blockswarm.swarm.simulation.scenario import BUILT_IN
from blockswarm.swarm.simulation.shape import SwarmShape

HOME = BUILT_IN["home"]


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ROUNDS", 12)


def test_a_swarm_of_thirty_on_home_lines(shape: SwarmShape) -> None:
    advice = make_plan(shape, HOME, peers=30, tokens=1e8)
    said = advice.to_json()
    assert said["simulated"] is True
    assert said["participation"] > 0.8
    assert said["round_seconds"] >= 10
    assert said["group_size"] >= 8
    assert 0 < said["hours"] < 10
    assert said["gb_per_peer_day"]["sent"] == pytest.approx(said["gb_per_peer_day"]["received"], rel=0.2)
    assert "SIMULATED" in advice.lines()[0]
    assert make_plan(shape, HOME, peers=30, tokens=1e8).to_json() == said


def test_narrower_lines_need_longer_rounds(shape: SwarmShape) -> None:
    wide, narrow = (make_plan(shape, HOME, peers=9, bandwidth=rate) for rate in (50e6 / 8, 2e6 / 8))
    assert narrow.round_seconds > wide.round_seconds
    assert any(limit.startswith("uplink") for limit in narrow.limits)


def test_lines_that_hold_no_round_are_refused(shape: SwarmShape) -> None:
    with pytest.raises(PlanError, match=r"no round of up to 3600 s holds an update of 0\.9 MB"):
        make_plan(shape, HOME, peers=9, bandwidth=100.0)


def test_too_few_volunteers_are_refused(shape: SwarmShape) -> None:
    with pytest.raises(ScenarioError, match="block 2 has no worker"):
        make_plan(shape, HOME, peers=2)


def test_replicas_follow_from_the_share_that_may_be_lost() -> None:
    def needed(coverage: float, loss: float) -> int:
        return replicas_for(BUILT_IN["lab"], coverage=coverage, loss=loss, fetch_seconds=1.0)

    assert needed(0.999, 0.3) == 6  # 0.3^6 = 0.0007
    assert needed(0.9, 0.3) == 2
    assert needed(0.999, 0.5) == 10
    assert needed(0.999, 0.0) == 1


def test_more_replicas_than_a_list_takes_is_named_as_the_limit(shape: SwarmShape) -> None:
    advice = make_plan(shape, HOME, peers=900)
    assert advice.replicas_there == 300
    assert any(limit.startswith("list") for limit in advice.limits)
