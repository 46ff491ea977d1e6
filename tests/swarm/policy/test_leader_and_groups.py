"""Leader order and the parts of the vector: total, fair over rounds, and covering everything exactly once."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.swarm.policy.grouping import ALIGNMENT, choose_members, part_bounds
from blockswarm.swarm.policy.leader import leader_order

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


def test_a_full_group_keeps_its_leader_and_the_first_of_the_order():
    assert choose_members(PEERS, leader="peer3", limit=3) == ["peer3", "peer0", "peer1"]


@given(values=st.integers(1, 10**7), shares=st.lists(st.floats(0, 100), min_size=1, max_size=16))
def test_parts_cover_the_vector_once_in_order_and_begin_at_aligned_values(values: int, shares: list[float]):
    if sum(shares) <= 0:
        with pytest.raises(ValueError, match="able to reduce"):
            part_bounds(values, shares)
        return
    bounds = part_bounds(values, shares)
    assert bounds[0][0] == 0 and bounds[-1][1] == values
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(bounds))
    assert all(begin % ALIGNMENT == 0 or begin == values for begin, _ in bounds)
    assert all(begin == end for (begin, end), share in zip(bounds, shares, strict=True) if share == 0)


def test_a_member_that_cannot_be_reached_reduces_nothing():
    assert part_bounds(1000, [1.0, 0.0, 1.0]) == [(0, 512), (512, 512), (512, 1000)]
