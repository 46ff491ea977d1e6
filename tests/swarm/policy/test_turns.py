"""Clients take turns, requests of the same states go together, and answers get their share of the time and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.swarm.policy.turns import TimeShare, Turn, Turns


def turn(client: str, item: str, *, work: int = 1, group: str | None = "states") -> Turn[str]:
    return Turn(client, work, group, item)


def waiting(*turns: Turn[str]) -> Turns[str]:
    found: Turns[str] = Turns()
    for one in turns:
        found.add(one)
    return found


def order(turns: Turns[str], *, most: int = 1, most_work: int = 100) -> list[str]:
    taken = []
    while turns:
        taken.append("".join(one.item for one in turns.take(most=most, most_work=most_work)))
    return taken


def test_a_client_that_asks_a_lot_waits_for_itself() -> None:
    greedy = [turn("greedy", item, group=None) for item in "abcde"]
    assert order(waiting(*greedy, turn("other", "X", group=None), turn("third", "Y", group=None))) == [*"aXYbcde"]


def test_what_can_be_computed_together_is_taken_one_of_each_client_after_another() -> None:
    turns = waiting(*[turn("ann", item) for item in "abcd"], turn("bob", "X"), turn("eve", "Z", group="others"))
    assert order(turns, most=4) == ["aXbc", "Z", "d"]


def test_no_more_work_is_taken_at_once_than_may_be_but_one_turn_always() -> None:
    turns = waiting(*[turn(name, name, work=40) for name in "abc"], turn("d", "d", work=500))
    assert order(turns, most=9, most_work=100) == ["ab", "c", "d"]


def test_who_has_given_up_is_not_computed() -> None:
    gone = turn("ann", "a")
    turns = waiting(gone, turn("bob", "b"))
    turns.discard(gone)
    turns.discard(gone)
    assert order(turns) == ["b"]
    assert turns.take(most=1, most_work=1) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None]), st.integers(1, 60)), max_size=40))
def test_every_turn_is_taken_once_and_in_its_clients_order(asked: list[tuple[str, str | None, int]]) -> None:
    turns: Turns[int] = Turns()
    for number, (client, group, work) in enumerate(asked):
        turns.add(Turn(client, work, group, number))
    taken = []
    while turns:
        batch = turns.take(most=5, most_work=100)
        assert len({one.group for one in batch}) == 1 and len(batch) <= 5
        assert len(batch) == 1 or (batch[0].group is not None and sum(one.work for one in batch) <= 100)
        taken += batch
    assert sorted(one.item for one in taken) == [*range(len(asked))]
    for client in "abc":
        mine = [one.item for one in taken if one.client == client]
        assert mine == sorted(mine)


# -- the share of the time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("piece", [0.002, 0.05, 0.4])
def test_answers_never_take_more_than_their_share_and_what_was_saved_up(share: float, piece: float) -> None:
    now, spent = 0.0, 0.0
    time = TimeShare(1.0, now)
    while now < 100.0:
        now += time.wait(share, now)
        now += piece
        spent += piece
        time.spend(piece, share, now)
        assert spent <= share * now + 1.0 + piece + 1e-6
    assert spent >= 0.95 * share * 100.0  # and they get it


def test_who_asks_little_never_waits() -> None:
    now, time = 0.0, TimeShare(1.0, 0.0)
    for _ in range(1000):
        assert time.wait(0.3, now) == 0.0
        now += 0.01
        time.spend(0.01, 0.3, now)
        now += 0.03


def test_what_is_saved_up_is_bounded() -> None:
    time = TimeShare(1.0, 0.0)
    time.spend(3.0, 0.5, 1e6)
    assert time.wait(0.5, 1e6) == pytest.approx(4.0)
    assert time.wait(1.0, 1e6) == pytest.approx(2.0)  # training has ended: all of the time is free
