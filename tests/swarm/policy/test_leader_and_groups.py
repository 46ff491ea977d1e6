"""Leader order and the parts of the vector: total, fair over rounds, and covering everything exactly once."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from blockswarm.swarm.policy.grouping import Seats, choose_members
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.policy.parts import ALIGNMENT

RUN = b"r" * 32
PEERS = [f"peer{number}" for number in range(5)]


def test_everyone_computes_the_same_order_whatever_order_the_peers_became_known_in():
    orders = {
        tuple(leader_order(peers, run_digest=RUN, subject=1, round_number=7))
        for peers in (PEERS, PEERS[::-1], [*PEERS, PEERS[0]])
    }
    assert len(orders) == 1
    assert sorted(orders.pop()) == PEERS


def test_leading_passes_from_peer_to_peer_over_rounds_and_differs_between_blocks():
    def leader(subject: int, number: int) -> str:
        return leader_order(PEERS, run_digest=RUN, subject=subject, round_number=number)[0]

    led = Counter(leader(0, number) for number in range(500))
    assert all(60 <= led[peer] <= 140 for peer in PEERS)  # 100 expected, four standard deviations either way
    assert any(leader(0, number) != leader(1, number) for number in range(10))


def test_a_full_list_keeps_its_leader_and_the_first_of_the_order():
    everyone = dict.fromkeys(PEERS, True)
    assert choose_members(everyone, leader="peer3", group_size=2, limit=3) == ["peer3", "peer0", "peer1"]


def test_every_group_has_somebody_that_can_be_reached_or_the_last_of_the_others_stay_outside():
    reachable = {"peer0": False, "peer1": False, "peer2": True, "peer3": False, "peer4": False}
    assert choose_members(reachable, leader="peer0", group_size=3, limit=9) == ["peer0", "peer1", "peer2"]
    assert choose_members(reachable, leader="peer4", group_size=2, limit=9) == ["peer4", "peer2"]


def test_twelve_are_dealt_out_to_three_groups_and_each_reduces_three_parts_for_its_group():
    seats = Seats(12 * ALIGNMENT, (True,) * 12, 4)
    assert seats.groups == ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))
    assert [seats.reducer(group, 4) for group in range(3)] == [3, 4, 5]
    assert seats.parts_of(3) == [3, 4, 5] and seats.slice_of(3) == (3 * ALIGNMENT, 6 * ALIGNMENT)


def test_the_last_reducer_of_a_smaller_group_takes_the_rest():
    seats = Seats(5 * ALIGNMENT, (True,) * 5, 4)
    assert seats.groups == ((0, 2, 4), (1, 3))
    assert seats.parts_of(3) == [2, 3, 4] and seats.parts_of(4) == [4]


def test_members_that_cannot_be_reached_are_spread_over_the_groups_and_reduce_nothing():
    seats = Seats(1000, (False, True, False, True, False), 3)
    assert seats.groups == ((0, 1, 4), (2, 3))
    assert seats.parts_of(0) == [] and seats.slice_of(0) == (0, 0)
    assert [seats.reducer(group, 1) for group in range(2)] == [1, 3]


LISTS = st.lists(st.booleans(), min_size=1, max_size=40).filter(any)


@given(values=st.integers(1, 10**6), reachable=LISTS, group_size=st.integers(2, 16))
def test_in_every_group_each_value_is_reduced_once_and_each_part_by_its_owner_in_its_own(
    values: int, reachable: list[bool], group_size: int
):
    seats = Seats(values, tuple(reachable), group_size)
    assert sorted(position for group in seats.groups for position in group) == list(range(len(reachable)))
    sizes = [len(group) for group in seats.groups]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= group_size or seats.count == sum(reachable)
    for number, group in enumerate(seats.groups):
        slices = sorted(seats.slice_of(position) for position in group)
        covered = [(begin, end) for begin, end in slices if begin < end]
        assert covered[0][0] == 0 and covered[-1][1] == values
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(covered))
        for position in group:
            begin, end = seats.slice_of(position)
            parts = [part for part, bounds in enumerate(seats.bounds) if begin <= bounds[0] < bounds[1] <= end]
            assert seats.parts_of(position) == parts
            assert all(seats.reducer(number, part) == position for part in parts)
            assert not reachable[position] or seats.reducer(number, position) == position
