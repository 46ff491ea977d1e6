from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.model.ngram_walk import contexts_before, expand, find

stretches = st.lists(st.lists(st.integers(0, 255), max_size=30, unique=True).map(sorted), min_size=1, max_size=20)


def bounds(parts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(part) for part in parts])
    return ends - [len(part) for part in parts], ends


@given(stretches, st.data())
def test_finding_a_byte_in_many_stretches_at_once(parts: list[list[int]], data: st.DataObject) -> None:
    begin, end = bounds(parts)
    wanted = [data.draw(st.sampled_from(part) if part else st.just(7)) for part in parts]
    wanted[0] = data.draw(st.integers(0, 255))
    at, there = find(
        np.array([byte for part in parts for byte in part], np.uint8), begin, end, np.array(wanted, np.uint8)
    )
    assert there.tolist() == [byte in part for byte, part in zip(wanted, parts, strict=True)]
    for k, part in enumerate(parts):
        if there[k]:
            assert at[k] - begin[k] == part.index(wanted[k])


@given(stretches)
def test_expanding_stretches_gives_all_their_indices(parts: list[list[int]]) -> None:
    begin, end = bounds(parts)
    assert expand(begin + 5, end - begin).tolist() == list(range(5, 5 + sum(map(len, parts))))
    assert expand(begin[:0], begin[:0]).tolist() == []


def test_contexts_are_read_backwards_and_never_before_their_beginning() -> None:
    text = np.frombuffer(b"abcdef", np.uint8)
    contexts = contexts_before(text, np.array([1, 4, 6]), np.array([1, 2, 6]), order=3)
    assert contexts.lengths.tolist() == [1, 2, 3]
    read = [contexts.recent[: contexts.lengths[k], k].tobytes() for k in range(3)]
    assert read == [b"a", b"dc", b"fed"]
