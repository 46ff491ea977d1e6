"""Volunteers go where the swarm is weakest, do not all go there at once, and never leave a block bare."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.swarm.policy.placement import (
    Replica,
    choose_block,
    join_delay,
    replicas_on_record,
    settle,
    should_move,
)


def training(*counts: int, speed: float = 0.0) -> list[Replica]:
    """``counts[b]`` replicas that train block ``b``."""
    return [Replica(f"old{b}.{k}", b, speed) for b, count in enumerate(counts) for k in range(count)]


def spread(replicas: list[Replica], blocks: int) -> list[int]:
    counts = Counter(replica.block for replica in replicas)
    return [counts[block] for block in range(blocks)]


# -- choosing ------------------------------------------------------------------------------------------------------


def test_a_bare_block_comes_first_whatever_the_others_lack() -> None:
    replicas = [Replica("a", 0, 0.001), Replica("b", 1, 500.0)]
    assert choose_block(3, replicas, own_id="me") == 2


def test_a_fast_machine_alone_is_weaker_than_two_slow_ones() -> None:
    replicas = [Replica("fast", 0, 100.0), Replica("slow1", 1, 1.0), Replica("slow2", 1, 1.0)]
    assert choose_block(2, replicas, own_id="me") == 0


def test_among_blocks_with_one_replica_the_slowest_is_helped() -> None:
    replicas = [Replica("a", 0, 9.0), Replica("b", 1, 3.0), Replica("c", 2, 7.0)]
    assert choose_block(3, replicas, own_id="me") == 1


def test_replicas_still_joining_count() -> None:
    replicas = [*training(1, 1), Replica("newcomer", 0, joining=True)]
    assert choose_block(2, replicas, own_id="me") == 1


def test_a_speed_nobody_measured_counts_as_the_median() -> None:
    replicas = [Replica("a", 0, 4.0), Replica("b", 1), Replica("c", 2, 2.0), Replica("d", 2, 6.0)]
    assert choose_block(2, replicas, own_id="me") in (0, 1)  # both are worth 4 samples/s


def test_equal_blocks_are_chosen_by_the_hash_of_the_peer_id_so_newcomers_spread() -> None:
    chosen = Counter(choose_block(3, [], own_id=f"peer{k}") for k in range(300))
    assert all(60 < chosen[block] < 140 for block in range(3))


def test_own_stale_record_does_not_count() -> None:
    assert choose_block(2, [Replica("me", 0), Replica("other", 1)], own_id="me") == 0


def test_six_volunteers_one_after_another_make_three_pairs() -> None:
    replicas: list[Replica] = []
    for k in range(6):
        replicas.append(Replica(f"peer{k}", choose_block(3, replicas, own_id=f"peer{k}"), joining=True))
    assert spread(replicas, 3) == [2, 2, 2]


# -- many newcomers at once ----------------------------------------------------------------------------------------


def look_again(joiners: list[Replica], settled: list[Replica], blocks: int, seen: float, rng: random.Random) -> None:
    """Every newcomer re-checks on its own view, in which each other newcomer appears with probability ``seen``."""
    views = [[other for other in joiners if rng.random() < seen] for _ in joiners]
    for index, view in enumerate(views):
        me = joiners[index]
        block = settle(blocks, settled + view, own_id=me.peer_id, own_block=me.block)
        joiners[index] = Replica(me.peer_id, block, joining=True)


@pytest.mark.parametrize("seed", range(5))
def test_many_newcomers_pick_the_same_block_at_once(seed: int) -> None:
    """30 newcomers look before any has announced, and all see block 1 bare; two looks later the blocks are even."""
    rng = random.Random(seed)
    settled = training(2, 0, 2)
    joiners = [
        Replica(f"new{seed}.{k}", choose_block(3, settled, own_id=f"new{seed}.{k}"), joining=True) for k in range(30)
    ]
    assert spread(joiners, 3) == [0, 30, 0]
    look_again(joiners, settled, 3, seen=0.8, rng=rng)  # a look while a fifth of the records has not arrived
    assert max(spread(settled + joiners, 3)) - min(spread(settled + joiners, 3)) <= 6
    look_again(joiners, settled, 3, seen=1.0, rng=rng)
    assert sorted(spread(settled + joiners, 3)) == [11, 11, 12]


def test_one_newcomer_alone_keeps_its_choice() -> None:
    for own_block in range(3):
        assert settle(3, training(1, 1, 1), own_id="me", own_block=own_block) == own_block


def test_the_surplus_moves_by_hash_and_the_rest_stays() -> None:
    joiners = [Replica(f"n{k}", 0, joining=True) for k in range(3)]
    after = [settle(3, joiners, own_id=f"n{k}", own_block=0) for k in range(3)]
    assert sorted(after) == [0, 1, 2]


_populations = st.tuples(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 2.5, 40.0])), max_size=12),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
)


@given(_populations)
def test_everyone_with_the_same_view_finds_the_same_even_assignment_and_it_is_stable(population: tuple) -> None:
    blocks, old, new = population
    settled = [Replica(f"old{k}", block % blocks, speed) for k, (block, speed) in enumerate(old)]
    joiners = [Replica(f"new{k}", block % blocks, joining=True) for k, block in enumerate(new)]
    view = settled + joiners
    first = [
        Replica(j.peer_id, settle(blocks, view, own_id=j.peer_id, own_block=j.block), joining=True) for j in joiners
    ]
    again = [settle(blocks, settled + first, own_id=j.peer_id, own_block=j.block) for j in first]
    assert again == [j.block for j in first]
    if len(view) >= blocks:
        bare = [b for b in range(blocks) if not any(r.block == b for r in settled)]
        covered = {j.block for j in first} & set(bare)
        assert len(covered) == min(len(bare), len(joiners))
    if not settled:
        assert max(spread(first, blocks)) - min(spread(first, blocks)) <= 1


# -- moving --------------------------------------------------------------------------------------------------------


GAIN = 1.3
"""From which improvement on moves for speed are made here; by default none is."""


def movers(replicas: list[Replica], blocks: int, turn: int = 0) -> dict[str, int]:
    """Who would move where, everyone deciding on the same view."""
    found = {}
    for r in replicas:
        target = should_move(blocks, replicas, own_id=r.peer_id, own_block=r.block, turn=turn, gain=GAIN)
        if target is not None:
            found[r.peer_id] = target
    return found


def test_a_bare_block_draws_exactly_one_replica_from_the_strongest_block() -> None:
    for turn in range(20):
        moves = movers(training(3, 0, 2), 3, turn)
        assert list(moves.values()) == [1]
        assert next(iter(moves)).startswith("old0.")


def test_by_default_only_a_bare_block_is_worth_a_move() -> None:
    unequal = training(9, 1)
    assert movers(unequal, 2), "with a gain that counts, somebody would go"
    for replica in unequal:
        chosen = should_move(2, unequal, own_id=replica.peer_id, own_block=replica.block, turn=0)
        assert chosen is None


def test_nobody_leaves_its_own_block_bare() -> None:
    assert movers(training(1, 0, 1), 3) == {}


def test_a_newcomer_without_the_state_does_not_free_the_last_replica_to_go() -> None:
    replicas = [Replica("last", 0), Replica("newcomer", 0, joining=True)]
    assert should_move(2, replicas, own_id="last", own_block=0, turn=1) is None


@pytest.mark.parametrize(
    ("counts", "moves"), [((3, 1), 1), ((2, 1), 0), ((3, 2), 0), ((4, 3), 0), ((4, 2), 1), ((9, 8), 0), ((2, 2), 0)]
)
def test_a_small_imbalance_moves_nobody(counts: tuple[int, ...], moves: int) -> None:
    assert len(movers(training(*counts), len(counts))) == moves


@given(st.lists(st.integers(0, 6), min_size=2, max_size=5).filter(lambda counts: sum(counts) > 0))
def test_moving_comes_to_rest_and_leaves_no_block_bare_that_could_be_covered(counts: list[int]) -> None:
    blocks, replicas = len(counts), training(*counts)
    quiet = 0
    for turn in range(60):
        moves = movers(replicas, blocks, turn)
        assert len(moves) <= 1
        replicas = [Replica(r.peer_id, moves.get(r.peer_id, r.block), r.speed) for r in replicas]
        quiet = 0 if moves else quiet + 1
    assert quiet >= 20
    if sum(counts) >= blocks:
        assert min(spread(replicas, blocks)) >= 1
    assert max(spread(replicas, blocks)) - min(spread(replicas, blocks)) <= 2


def test_a_model_of_one_block_has_nowhere_to_move() -> None:
    assert movers(training(4), 1) == {}


# -- reading the directory -----------------------------------------------------------------------------------------


class Record:
    def __init__(self, peer_id: str, state: str, expires: float) -> None:
        self.peer_id, self.state, self.expires = peer_id, state, expires
        self.block, self.samples_per_second = 1, 5.0


def test_offline_and_expired_records_are_no_replicas() -> None:
    records = [Record("a", "TRAINING", 20.0), Record("b", "OFFLINE", 20.0), Record("c", "SERVING", 9.0)]
    joining = Record("d", "JOINING", 20.0)
    assert replicas_on_record([*records, joining], now=10.0) == [
        Replica("a", 1, 5.0),
        Replica("d", 1, 5.0, joining=True),
    ]


def test_newcomers_do_not_all_wait_equally_long() -> None:
    rng = random.Random(1)
    delays = [join_delay(rng, longest=1.0) for _ in range(100)]
    assert 0.0 <= min(delays) < 0.1
    assert 0.9 < max(delays) <= 1.0
