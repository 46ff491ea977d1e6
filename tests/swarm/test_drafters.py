"""What drafters guess, and what they remember."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.mixing import normalise_log_probs
from blockswarm.model.numpy_block import NumpyBlock
from blockswarm.model.windows import window_start
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.drafting.blend import BlendDrafter
from blockswarm.swarm.drafting.local_block import BlockPredictor
from blockswarm.swarm.drafting.memory import RowMemory


def greedy(row: Float32, position: int) -> int:
    """The likeliest byte."""
    return int(np.argmax(row))


def sure_of(byte: int) -> Float32:
    """A row that expects one byte."""
    row = np.full(256, -10.0, np.float32)
    row[byte] = 0.0
    return normalise_log_probs(row)


def test_what_stood_in_the_text_is_guessed_again() -> None:
    text = b"the swarm writes, the swar"
    assert BlendDrafter().propose(text, 9, greedy) == b"m writes,"


def test_the_longer_context_decides() -> None:
    assert BlendDrafter().propose(b"xab yab zac zac zac xa", 1, greedy) == b"b"


def test_what_the_swarm_said_counts_more_than_what_stood_there() -> None:
    drafter = BlendDrafter()
    text = b"abab"
    drafter.learn(b"abab" + b"", sure_of(ord("!"))[np.newaxis])
    assert drafter.propose(text, 1, greedy) == b"!"


def test_rows_of_a_draft_are_learned_after_the_prefixes_they_belong_to() -> None:
    drafter = BlendDrafter()
    drafter.learn(b"one two", np.stack([sure_of(ord(" ")), sure_of(ord("2"))]))  # after "one tw" and "one two"
    assert drafter.propose(b"ne tw", 1, greedy) == b" "
    assert drafter.propose(b"ne two", 1, greedy) == b"2"


def test_a_prediction_is_a_distribution_and_rests_on_the_predictor_given() -> None:
    row = BlendDrafter(lambda text: sure_of(text[-1] + 1)).predict(b"abc")
    assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)
    assert BlendDrafter(lambda text: sure_of(text[-1] + 1)).propose(b"abc", 3, greedy) == b"def"


def test_a_drafter_without_any_idea_proposes_all_the_same() -> None:
    assert len(BlendDrafter().propose(b"x", 4, greedy)) == 4


def test_a_block_predicts_from_the_window_of_the_swarm_whatever_was_asked_before() -> None:
    config, recipe = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=8), RECIPES["paper"]
    random = np.random.default_rng(0)
    theta = random.standard_normal(block_layout(config).size).astype(np.float32) * np.float32(0.2)
    block = NumpyBlock(config, recipe, 1, theta, embedding_layout(config).genesis(0, EMBEDDING))
    predict = BlockPredictor(block)
    text = random.integers(0, 256, 40, dtype=np.uint8).tobytes()
    # Forwards, back to before a wrong guess, another way on, the same again, a shorter text.
    for asked in [*(text[:n] for n in range(1, 20)), text[:15] + b"xyz", text[:15], text[:15], text, b"q", text[:2]]:
        window = asked[window_start(len(asked) - 1, 8) :]
        np.testing.assert_allclose(predict(asked), block.extend(block.open(), window)[-1], atol=1e-5)


class TestRowMemory:
    """The newest rows, found by the bytes before them."""

    def test_rows_of_one_context_are_averaged(self) -> None:
        memory = RowMemory([2])
        memory.add(b"xab", sure_of(1))
        memory.add(b"yab", sure_of(2))
        mean = memory.mean(b"ab")
        assert mean is not None and mean[1] == pytest.approx(mean[2]) and mean[1] > 0.4
        assert memory.mean(b"xa") is None

    def test_the_oldest_gives_way(self) -> None:
        memory = RowMemory([1, 3], rows=5)
        for number in range(20):
            memory.add(bytes([0, number % 7, number]), sure_of(number))
        assert memory.mean(bytes([14])) is None
        for number in range(15, 20):
            mean = memory.mean(bytes([number]))
            assert mean is not None and int(mean.argmax()) == number
            assert memory.mean(bytes([0, number % 7, number])) is not None

    def test_short_texts_have_short_contexts(self) -> None:
        memory = RowMemory([1, 3])
        memory.add(b"a", sure_of(5))
        assert memory.mean(b"a") is not None
