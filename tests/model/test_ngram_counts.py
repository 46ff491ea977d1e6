from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram_counts import MAX_ORDER, Level, count_ngrams, prune
from tests.model.counted import count, orders, texts


def spelled_out(levels: list[Level]) -> dict[bytes, Counter[int]]:
    """Every context of the trie with what followed it; a leaf stands for its longer contexts too."""
    order = len(levels) - 1
    counts: dict[bytes, Counter[int]] = {}
    contexts = [b""]
    for k, level in enumerate(levels):
        pairs = zip(level.followers.tolist(), level.counts.tolist(), strict=True)
        for context, kinds in zip(contexts, level.kinds.tolist(), strict=True):
            counts[context] = Counter(dict(next(pairs) for _ in range(kinds)))
        if k == order:
            break
        below = levels[k + 1]
        single = zip(below.leaf_labels, below.leaf_tails, below.leaf_followers, strict=True)
        for context, leaves in zip(contexts, level.leaves.tolist(), strict=True):
            for label, tail, follower in (next(single) for _ in range(leaves)):
                for older in range(len(tail) + 1):
                    counts[tail[:older][::-1].tobytes() + bytes([label]) + context] = Counter([int(follower)])
        labels = iter(below.labels.tolist())
        contexts = [
            bytes([next(labels)]) + context
            for context, children in zip(contexts, level.children.tolist(), strict=True)
            for _ in range(children)
        ]
    return counts


@given(texts(), orders)
@settings(max_examples=40)
def test_the_trie_holds_exactly_what_followed_every_context(text: np.ndarray, order: int) -> None:
    assert spelled_out(count_ngrams(text, order)) == count(text.tobytes(), order)


@given(texts(), orders, st.integers(1, 12))
@settings(max_examples=40)
def test_pruning_keeps_contexts_that_were_seen_often_enough_with_all_that_followed_them(
    text: np.ndarray, order: int, min_count: int
) -> None:
    expected = {
        context: followers
        for context, followers in count(text.tobytes(), order).items()
        if followers.total() >= min_count or not context
    }
    assert spelled_out(prune(count_ngrams(text, order), min_count)) == expected


def test_every_byte_value_can_be_context_and_follower() -> None:
    text = np.random.default_rng(0).permutation(np.repeat(np.arange(256, dtype=np.uint8), 12))
    assert spelled_out(count_ngrams(text, 2)) == count(text.tobytes(), 2)


def test_counts_of_extensions_add_up_to_the_count_of_their_context() -> None:
    levels = count_ngrams(np.frombuffer(b"how much wood would a woodchuck chuck " * 5, np.uint8), 4)
    for level, below in itertools.pairwise(levels):
        parents = np.repeat(np.arange(len(level.kinds)), level.children)
        nodes = np.bincount(parents, weights=below.totals(), minlength=len(level.kinds))
        np.testing.assert_array_equal(nodes + level.leaves, level.totals())


@pytest.mark.parametrize("order", [0, MAX_ORDER + 1])
def test_an_order_out_of_range_is_refused(order: int) -> None:
    with pytest.raises(ModelError, match=f"order {order}: must lie between 1 and 8"):
        count_ngrams(np.zeros(100, np.uint8), order)


def test_what_is_no_text_or_too_short_is_refused() -> None:
    wide: Any = np.zeros(20, np.int64)
    with pytest.raises(ModelError, match=r"int64\[20\], expected uint8"):
        count_ngrams(wide, 4)
    with pytest.raises(ModelError, match="has 4 bytes: order 4 takes 5 to"):
        count_ngrams(np.zeros(4, np.uint8), 4)
    assert spelled_out(count_ngrams(np.zeros(5, np.uint8), 4)).keys() == {bytes(k) for k in range(5)}
