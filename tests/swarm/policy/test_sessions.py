"""Nobody can push out the sessions of others, and what is kept is bounded whatever is asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.policy.sessions import SessionBook


def book(**limits: Any) -> SessionBook[int]:
    return SessionBook(**{"most_bytes": 100, "most_sessions": 20, "most_of_client": 8, "idle_seconds": 60.0} | limits)


def test_a_session_counts_with_what_it_takes_now() -> None:
    kept = book()
    kept.use("ann", 1, 30, now=0.0)
    kept.use("ann", 1, 10, now=1.0)
    assert (len(kept), kept.bytes) == (1, 10)
    kept.drop("ann", 1)
    kept.drop("ann", 1)
    assert (len(kept), kept.bytes, list(kept)) == (0, 0, [])


def test_who_takes_up_most_gives_way_with_what_it_has_not_used_for_longest() -> None:
    kept = book()
    for session in (1, 2, 3):
        kept.use("greedy", session, 25, now=float(session))
    kept.use("greedy", 1, 25, now=4.0)
    assert kept.use("modest", 1, 40, now=5.0) == [("greedy", 2)]
    assert ("modest", 1) in kept and ("greedy", 1) in kept


def test_a_client_within_its_share_keeps_everything_whatever_the_other_does() -> None:
    kept = book()
    for session in range(5):
        kept.use("modest", session, 10, now=0.0)
    for session in range(10_000):
        kept.use("greedy", session, 7, now=1.0 + session)
        assert kept.bytes <= 100 and len(kept) <= 20
    assert [session for client, session in kept if client == "modest"] == [*range(5)]


def test_ten_thousand_clients_with_a_session_each_are_bounded() -> None:
    kept = book()
    for number in range(10_000):
        kept.use(f"client {number}", 0, 5, now=float(number))
    assert len(kept) == 20 and kept.bytes == 100
    assert ("client 9999", 0) in kept


def test_one_client_has_so_many_sessions_at_most() -> None:
    kept = book(most_bytes=1 << 30)
    for session in range(9):
        dropped = kept.use("ann", session, 1, now=float(session))
    assert dropped == [("ann", 0)]


def test_a_session_larger_than_all_the_room_is_not_kept() -> None:
    kept = book()
    kept.use("ann", 1, 50, now=0.0)
    assert kept.use("bob", 1, 101, now=1.0) == [("bob", 1)]
    assert list(kept) == [("ann", 1)]


def test_what_is_idle_goes() -> None:
    kept = book()
    kept.use("ann", 1, 1, now=0.0)
    kept.use("ann", 2, 1, now=30.0)
    kept.use("bob", 1, 1, now=10.0)
    assert kept.expire(59.0) == []
    assert kept.expire(75.0) == [("ann", 1), ("bob", 1)]
    kept.expire(1000.0)
    assert len(kept) == 0


USES = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 12), st.integers(0, 60), st.floats(0, 5)), max_size=200
)


@settings(max_examples=60, deadline=None)
@given(USES)
def test_the_account_is_right_and_the_bounds_hold_after_every_use(uses: list[tuple[str, int, int, float]]) -> None:
    kept, sizes, now = book(), dict[tuple[str, int], int](), 0.0
    for client, session, size, pause in uses:
        now += pause
        sizes[client, session] = size
        heaviest_before = Counter[str]()
        for (owner, _), taken in sizes.items():
            heaviest_before[owner] += taken
        for gone in kept.use(client, session, size, now):
            del sizes[gone]
        for gone in kept.expire(now):
            del sizes[gone]
        assert set(kept) == set(sizes)
        assert kept.bytes == sum(sizes.values()) <= 100
        assert len(kept) == len(sizes) <= 20
        assert max(Counter(owner for owner, _ in kept).values(), default=0) <= 8


@settings(max_examples=60, deadline=None)
@given(USES)
def test_whoever_stays_within_the_room_divided_by_the_clients_loses_nothing(
    uses: list[tuple[str, int, int, float]],
) -> None:
    kept = book(idle_seconds=1e9)
    for session in (0, 1):
        kept.use("modest", session, 8, now=0.0)  # 16 of 100 bytes and 2 of 20 sessions, with five others
    for client, session, size, pause in uses:
        kept.use(client, session, size, now=1.0 + pause)
    assert ("modest", 0) in kept and ("modest", 1) in kept
