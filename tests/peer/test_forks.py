"""Two halves of a block's replicas that go on apart meet again, and end on one state that has the work of both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockswarm.peer.exchange import Guest
from blockswarm.peer.forks import REFUSED_ROUNDS
from blockswarm.peer.heads import Head
from blockswarm.peer.line import Line, Link, check_chain, rounds_of
from blockswarm.peer.merging import Merge, gain_of
from blockswarm.peer.states import State
from blockswarm.swarm.policy.forks import Brought, contributions
from blockswarm.swarm.policy.outer import outer_step
from blockswarm.swarm.statements import StatementError
from tests.peer.partition import Partition
from tests.peer.test_round_contributors import guest, late_update
from tests.peer.wires import Replica, Wires


async def parted(
    folder: Path, *, winners: int = 2, losers: int = 2, rounds: int = 3, lost_samples: int = 16, **choices: Any
) -> tuple[Partition, list[Replica], list[Replica], State]:
    """After a round of all, the winners made some rounds of 32 samples each, and the losers as many with fewer."""
    world = Partition(Wires(winners + losers, **choices), folder)
    await world.begin()
    everyone = world.replicas
    await world.round(everyone)
    ancestor = everyone[0].state
    for _ in range(rounds):
        await world.round(everyone[:winners], 32)
    for _ in range(rounds):
        await world.round(everyone[winners:], lost_samples)
    return world, everyone[:winners], everyone[winners:], ancestor


async def together(world: Partition, there: list[Replica], most: int = 12) -> np.ndarray:
    """Rounds until nothing is left to merge; the sum of what was trained in them."""
    trained = np.zeros_like(there[0].state.values)
    for _ in range(most):
        results, mean = await world.round(there)
        assert len({result.state.digest for result in results if result.state}) == 1
        assert not any(result.rejected or result.clipped for result in results)
        trained += mean
        if not any([await world.forks[r.identity.peer_id].merge(0, r.state.round) for r in there]):
            return trained
    raise AssertionError("the merge does not end")


def share_of(moved: np.ndarray, lost: np.ndarray) -> float:
    """How much of a lost line's way is in a movement; the rest of the movement must be rounding."""
    share = float(moved @ lost) / float(lost @ lost)
    assert np.linalg.norm(moved - share * lost) < 0.02 * np.linalg.norm(lost)
    return share


async def test_two_halves_end_on_one_digest_that_has_the_losers_work_once_by_its_share(tmp_path: Path):
    world, winners, losers, ancestor = await parted(tmp_path)
    won, lost = winners[0].state, losers[0].state
    for loser in losers:
        judgement = await world.meet(loser, won, winners)
        assert judgement.go and judgement.fork is not None
        assert (judgement.fork.weighing.own, judgement.fork.weighing.other) == (96, 192)
    trained = await together(world, winners + losers)
    assert len({replica.state.digest for replica in world.replicas}) == 1
    moved = world.replicas[0].state.values - won.values - trained
    way, won_way = lost.values - ancestor.values, won.values - ancestor.values
    clip = min(1.0, np.linalg.norm(won_way) / np.linalg.norm(way))
    assert share_of(moved, way) == pytest.approx(clip * 96 / (96 + 192), abs=0.01)  # both losers' halves of a third
    assert [event["share"] for event in world.told("merged")] == pytest.approx([1.0, 1.0], abs=0.01)
    (first, second) = world.told("fork")
    assert first["merging"] and first["won"] == "other" and first["own_share"] == second["own_share"] == 0.5
    assert (first["own_samples"], first["other_samples"]) == (96, 192)


async def test_a_loser_that_comes_later_brings_its_own_share_and_no_more(tmp_path: Path):
    world, winners, losers, ancestor = await parted(tmp_path)
    won, lost = winners[0].state, losers[0].state
    trained = np.zeros_like(won.values)
    for count, loser in enumerate(losers, start=1):
        await world.meet(loser, winners[0].state, winners)
        trained += await together(world, [*winners, *losers[:count]])
        moved = winners[0].state.values - won.values - trained
        one = world.told("fork")[-1]
        assert share_of(moved, lost.values - ancestor.values) == pytest.approx(
            sum(event["line_share"] * event["own_share"] * event["clip"] for event in world.told("fork")), abs=0.01
        )
        assert one["own_share"] == 0.5


async def test_a_replica_that_was_killed_in_between_still_merges_and_once(tmp_path: Path):
    world, winners, losers, ancestor = await parted(tmp_path, losers=1, rounds=4)
    (loser,) = losers
    own = loser.identity.peer_id
    await world.forks[own].save()
    world.start(loser)  # the ancestor is no longer among the states in memory: it was kept on disk
    await world.begin(loser)
    lost, won = loser.state, winners[0].state
    await world.meet(loser, won, winners)
    world.start(loser)  # and what is left of the merge is kept
    await world.begin(loser)
    trained = await together(world, [*winners, loser])
    way = lost.values - ancestor.values
    event = world.told("fork")[0]
    assert event["merging"] and event["own_share"] == 1.0
    moved = loser.state.values - won.values - trained
    assert share_of(moved, way) == pytest.approx(event["line_share"] * event["clip"], abs=0.01)

    loser.state = lost  # an old checkpoint brings it back to the lost line
    world.start(loser)
    await world.begin(loser)
    await world.meet(loser, winners[0].state, winners)
    assert world.told("fork")[-1]["reason"] == "this peer has brought in its work of that line before"
    assert await world.forks[own].merge(0, winners[0].state.round + 1) is None


async def test_where_the_ancestor_is_not_kept_or_not_known_the_line_is_taken_over_without_a_merge(tmp_path: Path):
    world, winners, losers, _ = await parted(tmp_path, losers=1, rounds=4)
    (loser,) = losers
    own = loser.identity.peer_id
    for file in (tmp_path / own / "forks").glob("point-*"):
        file.write_bytes(b"damaged")
    lost = loser.state
    assert (await world.meet(loser, winners[0].state, winners)).go
    assert world.told("fork")[-1]["reason"] == "the state before the fork is not here any more"

    loser.state = lost
    world.folder = tmp_path / "new"
    world.start(loser)
    await world.begin(loser)  # without the certificates of its line
    judgement = await world.meet(loser, winners[0].state, winners)
    assert judgement.go and judgement.fork is None
    assert "gone over to without a merge: it split from ours before" in world.told("info")[-1]["message"]
    assert await world.forks[own].merge(0, loser.state.round + 1) is None


async def test_who_is_only_behind_goes_over_without_a_word_of_a_fork(tmp_path: Path):
    world = Partition(Wires(2), tmp_path)
    await world.begin()
    ahead, behind = world.replicas
    await world.round([ahead, behind])
    for _ in range(3):
        await world.round([ahead])
    judgement = await world.meet(behind, ahead.state, [ahead])
    assert judgement.go and judgement.fork is None and not world.events
    assert world.forks[behind.identity.peer_id].lines[0].head == ahead.state.digest


async def test_a_crowd_is_not_outweighed_by_one_that_claims_more_and_apart_for_ever_is_worse(tmp_path: Path):
    world, claimers, crowd, _ = await parted(tmp_path, winners=1, losers=5, rounds=1)
    (claimer,) = claimers
    await world.round([claimer], 1_000_000)
    member, forks = crowd[0], world.forks[crowd[0].identity.peer_id]
    assert not (await world.meet(member, claimer.state, claimers)).go
    assert forks.outweighed(0) == {claimer.state.digest} and world.told("fork")[-1]["won"] == "own"
    assert (await world.meet(claimer, member.state, crowd)).go  # it has more samples, and goes over all the same
    assert claimer.state.digest == member.state.digest

    world, claimers, crowd, _ = await parted(tmp_path / "again", winners=1, losers=5, rounds=1)
    await world.round(claimers, 1_000_000)
    assert not (await world.meet(crowd[0], claimers[0].state, claimers)).go
    seconds = world.wires.manifest.rounds.seconds
    await world.wires.clock.sleep_until(world.wires.clock.now() + REFUSED_ROUNDS * seconds)
    assert (await world.meet(crowd[0], claimers[0].state, claimers)).go


async def test_holders_of_a_line_that_loses_in_spite_of_more_samples_are_told_and_find_the_winning_state(
    tmp_path: Path,
):
    world, (claimer,), crowd, _ = await parted(tmp_path, winners=1, losers=5, rounds=1)
    await world.round([claimer], 1_000_000)
    heard: list[tuple[int, Head]] = []
    claimer.desk.on_news = lambda subject, head: heard.append((subject, head))
    claimer.desk.is_other_line = world.forks[claimer.identity.peer_id].is_news
    assert await world.source(crowd[0], [claimer]).newer(crowd[0].state, []) is None
    ((subject, head),) = heard
    assert (subject, head.digest, head.peer_id) == (0, crowd[0].state.digest, crowd[0].identity.peer_id)
    assert await world.source(claimer, []).newer(claimer.state, []) is None  # by itself it would look at nobody
    state = await world.source(claimer, []).newer(claimer.state, [head])
    assert state is not None and state.digest == crowd[0].state.digest


async def test_a_line_whose_links_do_not_fit_or_gain_more_than_was_announced_is_not_merged_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world, winners, losers, _ = await parted(tmp_path, rounds=2)
    holder, loser = winners[0], losers[0]
    forks, own_line = world.forks[loser.identity.peer_id], world.forks[holder.identity.peer_id].lines[0]
    foreign = losers[1]
    lines = world.forks[foreign.identity.peer_id].lines[0]
    honest = own_line.page(winners[0].state.digest)

    for page, problem in (
        (lines.page(foreign.state.digest), "links do not fit each other"),
        (honest[:1], "links do not fit each other"),
        ([b"forged"], "certificate"),
        ([], "unknown-state"),
    ):
        monkeypatch.setattr(own_line, "page", lambda digest, page=page: page)
        judgement = await forks.examine(loser.state, holder.state.head, [holder.identity.peer_id])
        assert judgement.fork is None and problem in judgement.problem, judgement.problem


async def test_a_long_fork_goes_in_over_rounds_so_that_no_update_is_too_long_for_its_peers(tmp_path: Path):
    world, winners, (loser,), _ = await parted(tmp_path, losers=1, rounds=6, lost_samples=32)
    await world.meet(loser, winners[0].state, winners)
    results, _ = await world.round([*winners, loser])
    share = results[-1].merged
    assert share is not None and 0 < share.merged < 0.9
    assert share.merge.left == pytest.approx(1 - share.merged)
    assert np.linalg.norm(share.addition) == pytest.approx(np.linalg.norm(share.trained), rel=1e-3)
    assert loser.identity.peer_id in results[0].accepted and not results[0].clipped


async def test_a_second_fork_adds_to_what_is_left_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world, winners, (loser,), _ = await parted(tmp_path, losers=1, rounds=6, lost_samples=32)
    own = loser.identity.peer_id
    await world.meet(loser, winners[0].state, winners)
    await world.round([*winners, loser])
    first = await world.forks[own].merge(0, loser.state.round + 1)
    assert first is not None and 0 < first.left < 1
    for _ in range(2):
        await world.round(winners, 32)
    # Alone it would bring in all that is left at once: a lone round has no peers to look at it.
    kept, first_left = first.values.copy(), first.left
    with monkeypatch.context() as patched:
        patched.setattr(world.forks[own], "merge", nothing)
        await world.round([loser], 8)
    assert (await world.meet(loser, winners[0].state, winners)).go
    second = await world.forks[own].merge(0, loser.state.round + 1)
    assert second is not None and len(second.branches) == 2 and second.left == 1.0
    assert float(second.values @ kept) / float(kept @ kept) == pytest.approx(first_left, abs=0.1)


async def nothing(*_: object) -> None:
    """No merge in this round."""


async def test_a_lost_line_that_went_astray_moves_the_state_no_further_than_the_winners_went(tmp_path: Path):
    world, winners, (loser,), ancestor = await parted(tmp_path, losers=1, rounds=2)
    size = loser.state.values.size
    await world.round([loser], deltas=[np.full(size, 0.5, np.float32)])
    lost, won = loser.state, winners[0].state
    await world.meet(loser, won, winners)
    event = world.told("fork")[-1]
    won_way = np.linalg.norm(won.values - ancestor.values)
    assert event["clip"] == pytest.approx(won_way / np.linalg.norm(lost.values - ancestor.values), rel=1e-3)
    assert event["norm"] <= event["line_share"] * won_way * 1.001


async def test_what_a_candidate_has_of_a_merge_counts_once_others_have_certified_it_else_it_is_left():
    for certified, left in ((b"c" * 32, 0.6), (b"d" * 32, 1.0)):
        merge = Merge(np.ones(4, np.float32), 2.0, 100, ("branch",))
        merge.reserve(0.5)
        merge.wait_for(b"c" * 32, 0.4)
        assert merge.left == 0.5  # a crash in between leaves it so: nothing goes in twice
        merge.settled(certified)
        assert merge.left == pytest.approx(left) and not merge.waits_for


def test_a_base_is_one_of_our_line_or_older_than_what_is_known_of_it():
    line = Line(b"r" * 32, 4, 100)
    line.append(Link(0, 6, b"d" * 32, b"r" * 32, 110, {"a": 10}, (), b""))
    for number, digest in ((3, b"x" * 32), (4, b"r" * 32), (6, b"d" * 32)):
        assert line.base_problem(number, digest) == ""
    assert line.base_problem(4, b"x" * 32) == "unknown base: the state of round 4 is another one here"
    assert line.base_problem(5, b"x" * 32) == "unknown base: no state of round 5 was certified here"


def test_a_link_may_not_gain_more_than_its_members_announced():
    link = Link(0, 3, b"d" * 32, b"p" * 32, 150, {"a": 40, "b": 10}, (), b"")
    check_chain([link], 100)
    for samples in (99, 151):
        with pytest.raises(StatementError, match="more samples than its members announced"):
            check_chain([link], samples)
    late = dataclasses.replace(link, brought=(Brought("a", 40, 0.5),))
    check_chain([late], 80)
    with pytest.raises(StatementError, match="more samples than its members announced"):
        check_chain([late], 79)


async def test_lines_whose_rounds_had_contributors_are_kept_and_merged_and_what_they_brought_is_their_sponsors(
    tmp_path: Path,
):
    world = Partition(Wires(3), tmp_path)
    await world.begin()
    first, second, loser = world.replicas
    genesis = first.state
    await world.round(world.replicas)

    def slow(number: int) -> Guest:
        return guest(world.wires, late_update(world.wires), number, genesis, samples=32)

    for _ in range(2):
        results, _ = await world.round([first, second], 16, guest=slow)
        assert results[0].contributed
    await world.round([loser], 16)
    judgement = await world.meet(loser, first.state, [first])
    assert judgement.go and judgement.fork is not None, judgement.problem
    links = world.forks[loser.identity.peer_id].lines[0].since(judgement.fork.ancestor)
    shares = contributions(rounds_of(links, 48), world.wires.manifest.averaging.max_weight_ratio)
    assert shares.keys() == {first.identity.peer_id, second.identity.peer_id}
    assert shares[first.identity.peer_id] == pytest.approx(shares[second.identity.peer_id] + 16 + 32 / 3, abs=2)
    for replica in (first, loser):
        forks = world.forks[replica.identity.peer_id]
        await forks.save()
        world.start(replica)
        await world.begin(replica)
        kept = world.forks[replica.identity.peer_id].lines[0]
        assert list(kept.links) == list(forks.lines[0].links) and kept.links


def test_with_an_outer_optimizer_a_mean_moves_the_state_on_for_rounds_and_all_of_it_counts():
    manifest = Wires(1, outer="nesterov").manifest
    settings = manifest.averaging
    moved, mean, velocity = 0.0, np.ones(1, np.float32), np.zeros(1, np.float32)
    for _ in range(60):
        step, velocity = outer_step(mean, velocity, momentum=settings.outer_momentum, rate=settings.outer_rate)
        moved, mean = moved + float(step[0]), np.zeros(1, np.float32)
    assert gain_of(manifest) == pytest.approx(moved, rel=1e-5)
    assert gain_of(Wires(1).manifest) == 1.0
