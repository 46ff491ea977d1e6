"""The outer step: Nesterov's, the same bits on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from blockswarm.swarm.policy.outer import outer_step

RNG = np.random.default_rng(0)
MEANS = [RNG.standard_normal(1000).astype(np.float32) for _ in range(4)]
NOTHING = np.zeros(1000, dtype=np.float32)


def test_without_momentum_a_step_is_the_mean_at_its_rate():
    step, velocity = outer_step(MEANS[0], NOTHING, momentum=0.0, rate=1.0)
    np.testing.assert_array_equal(step, MEANS[0])
    np.testing.assert_array_equal(velocity, MEANS[0])
    half, _ = outer_step(MEANS[0], NOTHING, momentum=0.0, rate=0.5)
    np.testing.assert_array_equal(half, MEANS[0] / 2)


@pytest.mark.parametrize(("momentum", "rate"), [(0.5, 0.7), (0.9, 0.3)])
def test_it_is_sgd_with_nesterov_momentum_on_the_negative_mean(momentum: float, rate: float):
    weights = torch.nn.Parameter(torch.zeros(1000))
    optimiser = torch.optim.SGD([weights], lr=rate, momentum=momentum, nesterov=True)
    ours, velocity = np.zeros(1000, dtype=np.float32), NOTHING
    for mean in MEANS:
        weights.grad = -torch.from_numpy(mean)
        optimiser.step()
        step, velocity = outer_step(mean, velocity, momentum=momentum, rate=rate)
        ours += step
    np.testing.assert_allclose(ours, weights.detach().numpy(), atol=1e-5)


def test_a_steady_mean_is_followed_at_a_steady_pace():
    velocity = NOTHING
    for _ in range(40):
        step, velocity = outer_step(MEANS[0], velocity, momentum=0.5, rate=0.7)
    np.testing.assert_allclose(step, 1.4 * MEANS[0], rtol=1e-5)


def test_neither_argument_changes_and_parts_can_be_stepped_one_by_one():
    mean, velocity = MEANS[0].copy(), MEANS[1].copy()
    whole = outer_step(mean, velocity, momentum=0.5, rate=0.7)
    parts = [outer_step(mean[cut], velocity[cut], momentum=0.5, rate=0.7) for cut in (slice(0, 300), slice(300, None))]
    np.testing.assert_array_equal(mean, MEANS[0])
    np.testing.assert_array_equal(velocity, MEANS[1])
    for together, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), together)


def test_the_bits_are_the_same_on_every_machine():
    bits = np.random.Philox(3).random_raw(2000).astype(np.int64) >> 40
    mean, velocity = np.split(bits.astype(np.float32) * np.float32(2**-40), 2)
    step, moved = outer_step(mean, velocity, momentum=0.5, rate=0.7)
    digest = hashlib.sha256(step.astype("<f4").tobytes() + moved.astype("<f4").tobytes()).hexdigest()
    assert digest[:16] == "d7466681ec9c1969"
