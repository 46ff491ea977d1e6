"""Simulated trainings: luck is shared, late work is carried or dropped, and all policies have the same time."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from blockswarm.lab.learning.arrivals import Arrivals
from blockswarm.lab.learning.policy import policy_from
from blockswarm.lab.learning.regime import REGIMES, Pace, Quantity, Regime, recipe_from, regime_from
from blockswarm.lab.learning.simulation import Case, Outcome, payload_bytes, simulate
from blockswarm.lab.text import LabText
from blockswarm.model.layout import EMBEDDING, Float32, block_layout, embedding_layout
from blockswarm.swarm.codec import encoded_size
from tests.lab.conftest import MODEL

PACE = Pace(name="test", payload_values=100_000, step_seconds=0.1, steps=2, blocks=2, replicas=2, rounds=3)
EASY = Regime(name="easy", deadline_seconds=1.0, latency_seconds=Quantity(median=0.01), up_mbit=Quantity(median=1000.0))
TOO_SLOW = EASY.model_copy(update={"name": "slow", "up_mbit": Quantity(median=1.0)})
"""An update takes 3.2 s of a round of one."""


def case(regime: Regime = EASY, policy: str = "fixed-2", seed: int = 0, pace: Pace = PACE) -> Case:
    return Case(regime=regime, policy=policy_from(policy), pace=pace, model=MODEL, seed=seed)


def values(outcome: Outcome) -> list[Float32]:
    assert outcome.states is not None
    trained = outcome.states[1]
    return [*trained.thetas, trained.embeddings[0]]


def same(one: Outcome, other: Outcome) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(values(one), values(other), strict=True))


def test_the_same_case_gives_the_same_states(text: LabText) -> None:
    noisy = case(regime_from("wan-mid"), "elastic+int4")
    assert same(simulate(noisy, text), simulate(noisy, text))
    assert not same(simulate(noisy, text), simulate(replace(noisy, seed=1), text))


def test_everybody_is_accepted_where_lines_are_fast(text: LabText) -> None:
    outcome = simulate(case(), text)
    assert (outcome.rounds, outcome.asked, outcome.accepted) == (3, 12, 12)
    assert outcome.wall_s == pytest.approx(3.0)
    assert outcome.steps == 2 * 12
    assert outcome.bytes_sent == 12 * 400_000


def test_where_nothing_arrives_the_old_blocks_stay(text: LabText) -> None:
    for policy in ("fixed-2", "elastic", "elastic+carry"):
        outcome = simulate(case(TOO_SLOW, policy), text)
        assert (outcome.accepted, outcome.reachable, outcome.asked) == (0, 0, 12)
        *thetas, table = values(outcome)
        assert all(np.array_equal(t, block_layout(MODEL).genesis(0, b)) for b, t in enumerate(thetas))
        assert np.array_equal(table, embedding_layout(MODEL).genesis(0, EMBEDDING))


def test_encoding_makes_an_update_fit(text: LabText) -> None:
    tight = EASY.model_copy(update={"up_mbit": Quantity(median=2.0)})  # float32 1.6 s, int4 0.2 s
    assert simulate(case(tight, "elastic"), text).accepted == 0
    assert simulate(case(tight, "elastic+int4"), text).accepted == 12


def test_carried_work_is_in_a_later_round(text: LabText) -> None:
    """A line that is in time in some rounds brings in more of what it trained when nothing is dropped."""
    fickle = EASY.model_copy(update={"dropout": 0.6})
    dropped, carried = (simulate(case(fickle, policy), text) for policy in ("fixed-2", "fixed-2+carry"))
    assert dropped.accepted == carried.accepted
    assert 0 < dropped.accepted < dropped.asked
    assert not same(dropped, carried)


def test_elastic_workers_train_while_their_update_travels(text: LabText) -> None:
    half = EASY.model_copy(update={"up_mbit": Quantity(median=12.8)})  # 0.25 s
    outcome = simulate(case(half, "elastic"), text)
    assert outcome.accepted == 12
    assert outcome.steps == 4 * 30  # four workers, ten steps a second, three seconds


def test_a_round_that_waits_ends_with_its_last_update_and_all_policies_have_the_same_time(text: LabText) -> None:
    waits = EASY.model_copy(update={"waits": True, "compute": regime_from("lockstep").compute})
    short, long = (simulate(case(waits, policy), text) for policy in ("fixed-2", "fixed-8"))
    assert short.accepted == short.asked
    assert short.rounds > long.rounds
    for outcome in (short, long):
        assert abs(outcome.wall_s - 3.0) <= outcome.wall_s / outcome.rounds / 2 + 1e-9


def test_the_curve_is_looked_at_over_the_simulated_time(text: LabText) -> None:
    shares: list[float] = []
    outcome = simulate(case(), text, look=lambda *_: 1.5, progress=shares.append)
    assert outcome.curve == [(pytest.approx(moment), 1.5) for moment in (1.0, 2.0, 3.0)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_payload_is_the_recipes_or_that_of_what_is_trained() -> None:
    assert payload_bytes(case(policy="fixed-2+int4")) == encoded_size(100_000, "int4")
    own = case(pace=PACE.model_copy(update={"payload_values": None}))
    assert payload_bytes(own) == 4 * (block_layout(MODEL).size + embedding_layout(MODEL).size)


def test_luck_belongs_to_the_seed_the_worker_and_the_round() -> None:
    regime = regime_from("wan-mid")
    slow, fast = (Arrivals(regime, 3, step_seconds=0.1, payload_bytes=payload, seed=4) for payload in (10**8, 10**6))
    again = Arrivals(regime, 3, step_seconds=0.1, payload_bytes=10**8, seed=4)
    assert slow.trips(7) == again.trips(7)
    assert len(slow.trips(7)) == 3
    for mine, later, light in zip(slow.trips(7), slow.trips(8), fast.trips(7), strict=True):
        assert mine != later
        assert mine.step_seconds == light.step_seconds
        assert mine.upload_seconds > light.upload_seconds


@pytest.mark.parametrize("name", REGIMES)
def test_the_papers_participation_is_met(name: str) -> None:
    """With the recipe's number of steps, over many seeds; the paper's own figures are counts out of 36."""
    regime, pace = regime_from(name), recipe_from("paper")
    assert regime.paper is not None
    payload = encoded_size(pace.payload_values or 0, "none")
    shares, lengths = [], []
    for seed in range(40):
        luck = Arrivals(regime, pace.blocks, step_seconds=pace.step_seconds, payload_bytes=payload, seed=seed)
        for number in range(1, pace.rounds + 1):
            trips = luck.trips(number)
            arrivals = [pace.steps * trip.step_seconds + trip.upload_seconds for trip in trips]
            in_time = [regime.waits or arrival <= regime.deadline_seconds for arrival in arrivals]
            shares += [ok and not trip.lost for ok, trip in zip(in_time, trips, strict=True)]
            lengths.append(max(arrivals) if regime.waits else regime.deadline_seconds)
    assert fmean(shares) == pytest.approx(regime.paper.participation, abs=0.05)
    assert pace.rounds * fmean(lengths) == pytest.approx(regime.paper.wall_s, rel=0.03)
