from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from blockswarm.model.errors import ModelError
from blockswarm.model.mixing import normalise_log_probs
from blockswarm.model.sampling import gumbel_noise, is_settled, sample_byte


@pytest.fixture
def logp() -> np.ndarray:
    return normalise_log_probs(2 * np.random.default_rng(0).standard_normal(256).astype(np.float32))


def test_temperature_zero_takes_the_likeliest_byte_and_the_smaller_on_a_tie(logp: np.ndarray) -> None:
    assert sample_byte(logp, temperature=0.0, seed=1, position=2) == int(np.argmax(logp))
    assert sample_byte(np.zeros(256, np.float32), temperature=0.0, seed=1, position=2) == 0


def test_a_byte_depends_on_seed_and_position_alone(logp: np.ndarray) -> None:
    def text(positions: list[int], seed: int) -> list[int]:
        return [sample_byte(logp, temperature=1.0, seed=seed, position=p) for p in positions]

    forwards = text(list(range(50)), 3)
    assert text(list(range(49, -1, -1)), 3) == forwards[::-1]
    assert text(list(range(20, 50)), 3) == forwards[20:]
    assert text(list(range(50)), 4) != forwards


def test_draws_follow_the_tempered_distribution(logp: np.ndarray) -> None:
    few = np.full(256, -np.inf, np.float32)
    few[[10, 20, 30]] = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    drawn = [sample_byte(few, temperature=0.5, seed=0, position=p) for p in range(4000)]
    squared = np.array([0.25, 0.09, 0.04])
    shares = np.array([drawn.count(b) for b in (10, 20, 30)]) / 4000
    np.testing.assert_allclose(shares, squared / squared.sum(), atol=0.03)


def test_a_nearby_distribution_mostly_gives_the_same_byte(logp: np.ndarray) -> None:
    # Shared randomness is what makes a good draft be accepted.
    near = normalise_log_probs(logp + 0.05 * np.random.default_rng(1).standard_normal(256).astype(np.float32))
    draw = partial(sample_byte, temperature=1.0, seed=0)
    same = [draw(logp, position=p) == draw(near, position=p) for p in range(300)]
    assert np.mean(same) > 0.9


def test_top_k_and_top_p_keep_only_the_likeliest(logp: np.ndarray) -> None:
    order = np.argsort(-logp)
    drawn = {sample_byte(logp, temperature=5.0, top_k=3, seed=0, position=p) for p in range(300)}
    assert drawn == set(order[:3].tolist())
    probabilities = np.exp(logp[order])
    needed = int(np.searchsorted(np.cumsum(probabilities), 0.3)) + 1
    drawn = {sample_byte(logp, temperature=1.0, top_p=0.3, seed=0, position=p) for p in range(2000)}
    assert drawn <= set(order[:needed].tolist())
    assert sample_byte(logp, temperature=1.0, top_p=1e-9, seed=0, position=0) == order[0]


def test_a_tiny_temperature_is_greedy_and_does_not_overflow(logp: np.ndarray) -> None:
    assert sample_byte(logp, temperature=1e-300, seed=0, position=0) == int(np.argmax(logp))


def test_the_noise_is_the_same_on_every_machine() -> None:
    np.testing.assert_allclose(
        gumbel_noise(0, 0)[:3], [-0.5876615966254634, 0.2377612121308894, 1.1676625944993475], rtol=1e-12
    )


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 0.3, "top_k": 20, "top_p": 0.9},
    {"temperature": 1e-300, "top_p": 0.9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_settled_byte_is_the_same_for_all_log_probabilities_that_near(options: dict[str, Any]) -> None:
    random = np.random.default_rng(5)
    tolerance = 0.01  # large, so that many choices could turn
    settled = turned = 0
    for position in range(400):
        logp = normalise_log_probs(2 * random.standard_normal(256).astype(np.float32))
        draw = partial(sample_byte, **options, seed=2, position=position)
        near = [logp + random.uniform(-tolerance, tolerance, 256).astype(np.float32) for _ in range(8)]
        differs = any(draw(other) != draw(logp) for other in near)
        if is_settled(logp, tolerance=tolerance, **options, seed=2, position=position):
            settled += 1
            assert not differs
        turned += differs
    assert settled > 280  # most are: a cautious answer costs a question
    assert turned > 0 or options["temperature"] == 1e-300


@pytest.mark.parametrize("temperature", [0.0, 1e-300])
def test_a_tie_is_not_settled(temperature: float) -> None:
    logp = np.full(256, -20.0, np.float32)
    logp[[3, 9]] = np.log(0.5)
    assert not is_settled(logp, tolerance=1e-6, temperature=temperature, seed=1, position=0)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 257},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
)
def test_an_option_out_of_range_is_named(logp: np.ndarray, bad: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(bad))):
        sample_byte(logp, **{"temperature": 1.0, "seed": 0, "position": 0, **bad})


def test_useless_log_probabilities_are_refused(logp: np.ndarray) -> None:
    spoilt = logp.copy()
    spoilt[7] = np.nan
    for bad in (spoilt, np.full(256, -np.inf, np.float32), logp[:100]):
        with pytest.raises(ModelError, match="log-probabilities"):
            sample_byte(bad, temperature=1.0, seed=0, position=0)
