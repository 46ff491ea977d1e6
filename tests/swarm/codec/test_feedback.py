"""Error feedback: nothing is lost, only late."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.swarm.codec import NAMES, CodecError, ErrorFeedback, decode

RNG = np.random.default_rng(0)
COUNT = 4096


@pytest.mark.parametrize("name", NAMES)
def test_what_was_sent_and_the_residual_are_all_that_was_given(name: str):
    feedback = ErrorFeedback(COUNT, name)
    given, sent = np.zeros(COUNT, dtype=np.float64), np.zeros(COUNT, dtype=np.float64)
    for _ in range(10):
        update = (1e-3 * RNG.standard_normal(COUNT)).astype(np.float32)
        given += update
        sent += decode(feedback.encode(update), COUNT, name)
    np.testing.assert_allclose(sent + feedback.residual, given, atol=1e-6)


@pytest.mark.parametrize(("name", "rounds", "left"), [("int4", 3, 0.05), ("experimental-sign", 40, 0.2)])
def test_a_constant_update_arrives_on_the_average(name: str, rounds: int, left: float):
    feedback = ErrorFeedback(COUNT, name)
    update = RNG.standard_normal(COUNT).astype(np.float32)
    sent = sum(decode(feedback.encode(update), COUNT, name) for _ in range(rounds)) / rounds
    assert np.linalg.norm(sent - update) < left * np.linalg.norm(update)


def test_decay_forgets_what_was_not_sent():
    feedback = ErrorFeedback(COUNT, "experimental-dct", decay=0.5)
    feedback.encode(RNG.standard_normal(COUNT).astype(np.float32))
    before = feedback.residual.copy()
    feedback.encode(np.zeros(COUNT, dtype=np.float32))
    assert np.linalg.norm(feedback.residual) <= 0.5 * np.linalg.norm(before)


@pytest.mark.parametrize("name", ["fp16", "int4"])
def test_an_update_that_is_not_finite_leaves_the_residual_as_it_was(name: str):
    feedback = ErrorFeedback(COUNT, name)
    feedback.encode(RNG.standard_normal(COUNT).astype(np.float32))
    before = feedback.residual.copy()
    bad = np.zeros(COUNT, dtype=np.float32)
    bad[7] = np.inf
    with pytest.raises(CodecError, match="finite"):
        feedback.encode(bad)
    with pytest.raises(CodecError, match="residual"):
        feedback.encode(np.zeros(3, dtype=np.float32))
    np.testing.assert_array_equal(feedback.residual, before)
