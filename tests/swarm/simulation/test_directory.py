"""The sampled directory: what lookups cost, as measured, and what an overloaded one still tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockswarm.swarm.simulation.directory import (
    KEY_RECORDS,
    DirectoryState,
    directory_state,
    lookup_requests,
    lookup_seconds,
)

MEASURED = [(30, 20.0), (300, 20.0), (1000, 20.0), (3000, 21.5), (10_000, 23.65)]
"""Nodes and requests of a lookup, from ``benchmarks/lookups.py``."""

MEASURED_STALE = [(0.0, 6.4), (0.1, 16.0), (0.3, 27.5)]
"""Share of dead nodes and median duration in round trips of 80 ms, 30 to 1000 nodes."""


def loaded(nodes: int, **changed: Any) -> DirectoryState:
    asked = {"departures": 0.0, "up": 2.5e6, "rtt": 0.08, "shards": 1, "round_seconds": 10.0, **changed}
    return directory_state(replicas=np.full(3, nodes // 3), nodes=nodes, **asked)


@pytest.mark.parametrize(("nodes", "requests"), MEASURED)
def test_a_lookup_makes_as_many_requests_as_hiveminds_own(nodes: int, requests: float) -> None:
    assert lookup_requests(nodes) == pytest.approx(requests, rel=0.05)


def test_a_swarm_smaller_than_the_beam_asks_everybody() -> None:
    assert lookup_requests(5) == 4
    assert lookup_requests(1) == 0


@pytest.mark.parametrize(("stale", "round_trips"), MEASURED_STALE)
def test_a_lookup_takes_as_long_as_hiveminds_own(stale: float, round_trips: float) -> None:
    drawn = lookup_seconds(np.random.default_rng(0), 4000, requests=20.0, rtt=0.08, stale=stale)
    assert np.median(drawn) / 0.08 == pytest.approx(round_trips, rel=0.25)


def test_in_a_small_swarm_everybody_knows_everybody() -> None:
    assert loaded(30).known.tolist() == [1.0, 1.0, 1.0]
    assert loaded(30).answered.min() == 1.0


def test_reading_everybody_again_and_again_overloads_the_holders_of_a_key() -> None:
    shares = [float(loaded(nodes, often=True).answered.mean()) for nodes in (100, 1000, 10_000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.05


def test_reading_as_often_as_the_size_allows_costs_a_large_swarm_several_times_less() -> None:
    for nodes in (1000, 10_000):
        often, sized = loaded(nodes, often=True), loaded(nodes)
        assert sized.answered.mean() > 4 * often.answered.mean()
        assert sized.hottest < often.hottest / 2  # the rest writes its own records
    few = loaded(15)
    assert few.sent == pytest.approx(loaded(15, often=True).sent)


def test_a_key_holds_512_records_and_more_keys_hold_more() -> None:
    assert loaded(6000).listed[0] == pytest.approx(KEY_RECORDS / 2000)
    assert loaded(6000, shards=4).listed[0] == 1.0
