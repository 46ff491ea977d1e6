"""An n-gram model that is slow and obviously right, and texts worth counting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

Row = Callable[[bytes], np.ndarray]


def count(text: bytes, order: int) -> dict[bytes, Counter[int]]:
    """What followed every context of 0 … ``order`` bytes."""
    counts: dict[bytes, Counter[int]] = defaultdict(Counter)
    for end in range(order, len(text)):
        for k in range(order + 1):
            counts[text[end - k : end]][text[end]] += 1
    return counts


def witten_bell(text: bytes, order: int, min_count: int = 1) -> Row:
    """The formula in the docstring of model/ngram.py, word for word: probabilities of the byte after a context."""
    counts = count(text, order)

    def row(context: bytes) -> np.ndarray:
        p = [1 / 256] * 256
        for k in range(min(order, len(context)) + 1):
            seen = counts.get(context[len(context) - k :], Counter())
            c, t = seen.total(), len(seen)
            if c and (k == 0 or c >= min_count):
                p = [(seen[w] + t * p[w]) / (c + t) for w in range(256)]
        return np.array(p)

    return row


orders = st.integers(1, 8)


@st.composite
def texts(draw: st.DrawFn, *, least: int = 9, most: int = 300) -> np.ndarray:
    """Texts of few different bytes, so that contexts come again; some repeat a phrase over and over."""
    alphabet = draw(st.lists(st.integers(0, 255), min_size=1, max_size=5, unique=True))
    phrase = draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=40))
    rest = draw(st.lists(st.sampled_from(alphabet), min_size=least, max_size=most))
    return np.array(phrase * draw(st.integers(1, 4)) + rest, np.uint8)
