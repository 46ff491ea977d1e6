"""Policies over arrays decide what the scalar forms, which peers run, decide one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.swarm.policy.acceptance import PartReport, decide
from blockswarm.swarm.policy.acceptance_arrays import decide_all
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.policy.grouping_arrays import seat, slowest_reducers
from blockswarm.swarm.policy.leader import first_in_order, leader_order
from blockswarm.swarm.policy.parts import Bandwidth, part_bounds, part_shares, reducing_rates
from blockswarm.swarm.policy.placement import Replica, choose_block, settle, should_move
from blockswarm.swarm.policy.placement_arrays import choose_blocks, choose_mover, settle_all, strengths_of
from blockswarm.swarm.policy.robust import Robust

SPEEDS = st.integers(0, 6).map(lambda eighths: eighths / 8)  # sums are exact in any order; 0: not measured


@st.composite
def swarms(draw: st.DrawFn) -> tuple[int, list[Replica]]:
    blocks = draw(st.integers(1, 5))
    count = draw(st.integers(0, 14))
    return blocks, [
        Replica(f"peer{number}", draw(st.integers(0, blocks - 1)), draw(SPEEDS), draw(st.booleans()))
        for number in range(count)
    ]


def columns(replicas: list[Replica]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([r.block for r in replicas], dtype=np.int64), np.array([r.speed for r in replicas])


@given(swarms())
def test_newcomers_who_look_together_choose_as_each_would_alone(swarm: tuple[int, list[Replica]]) -> None:
    blocks, replicas = swarm
    newcomers = [f"new{number}" for number in range(4)]
    together = choose_blocks(strengths_of(blocks, *columns(replicas)), newcomers)
    assert together.tolist() == [choose_block(blocks, replicas, own_id=newcomer) for newcomer in newcomers]


@given(swarms())
def test_everyone_who_joins_settles_as_each_would_alone(swarm: tuple[int, list[Replica]]) -> None:
    blocks, replicas = swarm
    replicas = [Replica(r.peer_id, r.block, 0.0 if r.joining else r.speed, r.joining) for r in replicas]
    joining = [replica for replica in replicas if replica.joining]
    together = settle_all(
        blocks,
        *columns([replica for replica in replicas if not replica.joining]),
        joining_ids=[replica.peer_id for replica in joining],
        joining_blocks=[replica.block for replica in joining],
    )
    assert together == [settle(blocks, replicas, own_id=r.peer_id, own_block=r.block) for r in joining]


@given(swarms(), st.integers(0, 9), st.sampled_from([1.25, 2.0, math.inf]))
def test_exactly_the_one_moves_that_would_move_by_itself(
    swarm: tuple[int, list[Replica]], turn: int, gain: float
) -> None:
    blocks, replicas = swarm
    replicas = [Replica(r.peer_id, r.block, r.speed or 0.5, r.joining) for r in replicas]
    found = choose_mover(
        blocks,
        *columns(replicas),
        np.array([replica.joining for replica in replicas], dtype=bool),
        id_of=lambda index: replicas[index].peer_id,
        turn=turn,
        gain=gain,
    )
    wishes = {
        index: target
        for index, r in enumerate(replicas)
        if not r.joining
        and (target := should_move(blocks, replicas, own_id=r.peer_id, own_block=r.block, turn=turn, gain=gain))
        is not None
    }
    assert wishes == ({} if found is None else {found[0]: found[1]})


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**40), st.integers(-1, 300))
def test_the_first_of_many_are_the_first_of_the_leader_order(
    peers: int, limit: int, round_number: int, subject: int
) -> None:
    names = [f"peer{number}" for number in range(peers)]
    asked = {"run_digest": b"r" * 32, "subject": subject, "round_number": round_number}
    first = first_in_order([name.encode() for name in names], limit=limit, **asked)
    assert [names[index] for index in first] == leader_order(names, **asked)[:limit]


UPDATES = st.tuples(st.integers(0, 8), st.integers(0, 40).map(float), st.booleans())


@settings(max_examples=200)
@given(
    groups=st.lists(st.lists(UPDATES, min_size=1, max_size=7), min_size=1, max_size=4),
    ratios=st.tuples(st.sampled_from([1.5, 3.0, 10.0]), st.sampled_from([1.0, 4.0]), st.sampled_from([1.0, 2.0])),
    robust=st.sampled_from(["none", "clip", "trimmed", "centered"]),
)
def test_groups_are_judged_as_each_would_be_by_its_leader(
    groups: list[list[tuple[int, float, bool]]], ratios: tuple[float, float, float], robust: Robust
) -> None:
    limits = {"max_norm_ratio": ratios[0], "max_weight_ratio": ratios[1], "clip_ratio": ratios[2]}
    shape = len(groups), max(map(len, groups))
    samples, norms, sound = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    for row, group in enumerate(groups):
        for column, (count, norm, fine) in enumerate(group):
            samples[row, column], norms[row, column], sound[row, column] = count, norm, fine
    found = decide_all(samples, norms, sound, robust=robust, **limits)
    for row, group in enumerate(groups):
        report = {str(m): PartReport(norm**2, "" if fine else "late") for m, (_, norm, fine) in enumerate(group)}
        verdict = decide({str(m): count for m, (count, _, _) in enumerate(group)}, [report], robust=robust, **limits)
        weights = {str(m): weight for m, weight in enumerate(found.weights[row]) if weight > 0}
        assert weights == pytest.approx(verdict.weights)
        assert {str(m) for m in np.flatnonzero(found.too_long[row])} == {
            name for name, reason in verdict.rejected.items() if reason.startswith("norm ")
        }
        clips = {str(m): clip for m, clip in enumerate(found.clips[row]) if clip < 1}
        assert clips == pytest.approx(verdict.clips)


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any), st.integers(2, 16))
def test_lists_are_cut_into_the_groups_that_their_members_compute(reachable: list[bool], group_size: int) -> None:
    one, arrays = Seats(10**6, tuple(reachable), group_size), seat(np.array(reachable), group_size)
    assert (arrays.count, tuple(arrays.group_of.tolist())) == (one.count, one.group_of)
    for group in range(one.count):
        for part, owned in enumerate(reachable):
            assert arrays.reducer[group, part] == (one.reducer(group, part) if owned else -1)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=40).filter(
        lambda members: any(able for _, able in members)
    ),
    st.integers(2, 8),
)
def test_the_slowest_reducer_of_each_part_is_the_one_that_peers_find(
    members: list[tuple[int, bool]], group_size: int
) -> None:
    lines, reachable = tuple(Bandwidth(up) for up, _ in members), tuple(able for _, able in members)
    rates = reducing_rates(lines, reachable)
    slowest = slowest_reducers(seat(np.array(reachable), group_size), np.array(rates))
    bounds = part_bounds(10**6, part_shares(slowest.tolist(), [0] * len(lines)))
    assert tuple(bounds) == Seats(10**6, reachable, group_size, lines).bounds
