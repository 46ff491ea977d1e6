"""Relay: blocks chained forward, each with its own loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blockswarm.lab.measuring import measure
from blockswarm.lab.plan import blocks_plan
from blockswarm.lab.relay import RelayStack, train_relay
from blockswarm.lab.text import LabText
from blockswarm.model.config import RECIPES
from blockswarm.model.layout import block_layout
from tests.lab.conftest import MODEL

PLAN = blocks_plan(MODEL, replace(RECIPES["default"], z_zero_share=1.0, weighting="unit"), 20, 0, relay=True)


def test_a_relay_learns_and_later_blocks_use_what_comes_in(text: LabText) -> None:
    trained = train_relay(PLAN, text)
    assert trained.curve[-1][1] < trained.curve[0][1]
    size = block_layout(MODEL).size
    assert not trained.thetas[0][size:].any(), "nothing comes in to the first block"
    assert trained.thetas[1][size:].any()
    whole = measure(RelayStack([(PLAN, trained)]), text.test[:300], ["alone:1"])["alone:1"]
    cut = replace_tail(trained.thetas[1], size)
    trained.thetas[1] = cut
    without = measure(RelayStack([(PLAN, trained)]), text.test[:300], ["alone:1"])["alone:1"]
    assert not np.allclose(whole, without)


def replace_tail(theta: np.ndarray, size: int) -> np.ndarray:
    """The block with its relay projection zeroed."""
    changed = theta.copy()
    changed[size:] = 0.0
    return changed


def test_a_later_byte_changes_no_earlier_prediction(text: LabText) -> None:
    stack = RelayStack([(PLAN, train_relay(PLAN, text))])
    some = text.test[:30].copy()
    before = measure(stack, some, ["parallel"])["parallel"]
    some[25] ^= 1
    after = measure(stack, some, ["parallel"])["parallel"]
    assert np.allclose(before[:24], after[:24], atol=1e-5)
    assert before[24] != after[24]


def test_the_same_plan_gives_the_same_weights(text: LabText) -> None:
    one, other = train_relay(PLAN, text), train_relay(PLAN, text)
    assert all(np.array_equal(a, b) for a, b in zip(one.thetas, other.thetas, strict=True))
