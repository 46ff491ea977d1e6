"""A peer keeps the last three certified states, and older ones while somebody reads them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from blockswarm.clock import ManualClock
from blockswarm.model.layout import CHUNK_BYTES, state_digest
from blockswarm.peer.states import State, StateStore


def state(round_number: int, subject: int = 0, size: int = 10) -> State:
    values = np.full(size, round_number, dtype=np.float32)
    return State.make(subject, round_number, values, samples=100 * round_number)


def rounds(store: StateStore, subject: int = 0) -> list[int]:
    return [held.round for held in store.recent(subject)]


def test_a_state_is_named_by_its_bytes_and_cannot_change() -> None:
    made = state(1)
    assert made.digest == state_digest(made.values)
    with pytest.raises(ValueError, match="read-only"):
        made.values[0] = 7


def test_a_state_made_from_a_view_does_not_change_with_its_owner() -> None:
    owner = np.zeros((2, 10), dtype=np.float32)
    made = State.make(0, 1, owner[0], samples=1)
    owner[:] = 1
    assert not made.values.any()


def test_chunks_together_are_the_state_and_hash_to_its_digests() -> None:
    made = state(3, size=CHUNK_BYTES // 4 + 5)
    pieces = [made.chunk(index) for index in range(len(made.chunks))]
    assert b"".join(pieces) == made.values.tobytes()
    assert [hashlib.sha256(piece).digest() for piece in pieces] == list(made.chunks)
    assert [made.head.chunk_bytes(index) for index in range(2)] == [CHUNK_BYTES, 20]


def test_the_chunks_of_a_momentum_follow_those_of_the_values() -> None:
    size = CHUNK_BYTES // 4 + 5
    values, momentum = np.full(size, 1, dtype=np.float32), np.full(size, 2, dtype=np.float32)
    made = State.make(0, 1, values, samples=1, momentum=momentum)
    head = made.head
    pieces = [bytes(made.chunk(index)) for index in range(head.chunk_count)]
    assert b"".join(pieces) == values.tobytes() + momentum.tobytes()
    assert [hashlib.sha256(piece).digest() for piece in pieces] == [head.chunk_digest(index) for index in range(4)]
    assert [head.chunk_bytes(index) for index in range(4)] == [CHUNK_BYTES, 20] * 2
    assert [head.chunk_begin(index) for index in range(4)] == [0, CHUNK_BYTES, 4 * size, 4 * size + CHUNK_BYTES]
    assert head.size == 8 * size
    with pytest.raises(ValueError, match="read-only"):
        momentum[0] = 7


def test_who_has_the_values_alone_needs_one_digest_more_to_check_them() -> None:
    values, momentum = np.arange(10, dtype=np.float32), np.ones(10, dtype=np.float32)
    made = State.make(0, 1, values, samples=1, momentum=momentum)
    assert made.digest == state_digest(values, momentum)
    assert made.digest == hashlib.sha256(state_digest(values) + state_digest(momentum)).digest()


def test_the_last_three_are_kept_newest_first() -> None:
    store = StateStore(ManualClock())
    assert store.head(0) is None
    for number in range(1, 6):
        store.commit(state(number))
    assert rounds(store) == [5, 4, 3]
    head = store.head(0)
    assert head is not None
    assert head.round == 5
    assert store.get(0, state(1).digest) is None


async def test_a_state_in_use_outlives_newer_ones_until_its_lease_ends() -> None:
    clock = ManualClock()
    store = StateStore(clock, lease=60.0)
    store.commit(state(1))
    for number in range(2, 6):
        assert store.get(0, state(1).digest) is not None
        store.commit(state(number))
    assert rounds(store) == [5, 4, 3, 1]
    await clock.advance(61.0)
    store.commit(state(6))
    assert rounds(store) == [6, 5, 4]


def test_states_in_use_are_bounded_too() -> None:
    store = StateStore(ManualClock(), most=6)
    for number in range(1, 20):
        store.commit(state(number))
        store.get(0, state(number).digest)
    assert rounds(store) == [19, 18, 17, 16, 15, 14]


def test_going_back_to_a_known_state_makes_it_the_head_once() -> None:
    store = StateStore(ManualClock())
    for number in (1, 2, 1):
        store.commit(state(number))
    assert rounds(store) == [1, 2]


def test_subjects_are_apart_and_one_can_be_forgotten() -> None:
    store = StateStore(ManualClock())
    store.commit(state(1, subject=-1))
    store.commit(state(1, subject=0))
    store.forget(0)
    assert rounds(store, 0) == []
    assert rounds(store, -1) == [1]
