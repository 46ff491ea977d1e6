"""Rounds of twelve replicas in groups of four: one digest for all, whoever falls silent, and who was left out keeps its
work."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from blockswarm.peer.round import RoundResult
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.manifest import EMBEDDING
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.statements import Certificate
from tests.peer.test_round import one_digest, updates
from tests.peer.wires import Replica, Wires

COUNT, GROUP = 12, 4


def twelve(subject: int = 0, **choices: object) -> Wires:
    """Twelve replicas whose manifest allows groups of four."""
    return Wires(COUNT, subject=subject, group_size=GROUP, **choices)


class Seated:
    """Where everybody will sit in a round to come, all being there."""

    def __init__(self, wires: Wires, number: int) -> None:
        self.wires = wires
        self.order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
        self.seats = Seats(wires.manifest.parameters(0), (True,) * COUNT, GROUP)

    def __getitem__(self, position: int) -> Replica:
        return self.wires.replicas[self.order[position]]

    def group(self, number: int) -> list[str]:
        return [self.order[position] for position in self.seats.groups[number]]


def by_id(wires: Wires, results: list[RoundResult]) -> dict[str, RoundResult]:
    return dict(zip(wires.ids, results, strict=True))


@pytest.mark.parametrize("subject", [0, EMBEDDING])
async def test_three_groups_commit_the_weighted_mean_of_all_twelve_as_the_same_bytes(subject: int):
    wires = twelve(subject=subject)
    deltas, samples = updates(wires), [16 + 4 * number for number in range(COUNT)]
    parent = wires[0].state.values
    results = await wires.round(deltas, samples)
    one_digest(results)
    expected = parent + sum(count * delta for count, delta in zip(samples, deltas, strict=True)) / sum(samples)
    np.testing.assert_allclose(results[0].state.values, expected, atol=5e-6)  # fp16 on the wire
    assert results[0].state.samples == sum(samples)
    certificate = Certificate.open(results[0].state.certificate, wires.manifest.digest)
    assert sorted(certificate.members.members) == sorted(wires.ids)
    assert len(certificate.voters) >= 7  # more than half of all, not of one group
    assert all(sorted(result.accepted) == sorted(wires.ids) and not result.rejected for result in results)
    assert all("combine" in result.phases_ms for result in results)


@pytest.mark.parametrize(("count", "size"), [(5, 4), (7, 3), (9, 2)])
async def test_groups_of_unequal_size_commit_the_mean_of_all(count: int, size: int):
    wires = Wires(count, group_size=size, compression="none")
    deltas, parent = updates(wires), wires[0].state.values
    results = await wires.round(deltas)
    one_digest(results)
    np.testing.assert_allclose(results[0].state.values, parent + sum(deltas) / count, atol=5e-7)


@pytest.mark.parametrize("robust", ["trimmed", "centered"])
async def test_robust_means_are_each_groups_own_and_all_still_hold_the_same_bytes(robust: str):
    wires = twelve(robust=robust)
    number = wires.next_round()
    parent, deltas = wires[0].state.values, updates(wires)
    liar = wires.ids.index(Seated(wires, number).order[5])
    deltas[liar] *= 5.0  # not so long that it is refused
    results = await wires.round(deltas, number=number)
    one_digest(results)
    mean = sum(deltas) / COUNT
    honest = sum(delta for index, delta in enumerate(deltas) if index != liar) / (COUNT - 1)
    gained = results[0].state.values - parent
    assert np.linalg.norm(gained - honest) < np.linalg.norm(mean - honest)


async def test_up_to_the_group_size_nothing_is_combined():
    wires = Wires(GROUP, group_size=GROUP)
    results = await wires.round(updates(wires))
    one_digest(results)
    assert all("combine" not in result.phases_ms for result in results)


async def test_groups_move_no_more_bytes_than_one_butterfly_of_all_would():
    wires = twelve(compression="int4")
    results = await wires.round(updates(wires))
    one_digest(results)
    ideal = 2 * (COUNT - 1) / COUNT * encoded_size(wires.manifest.parameters(0), "int4")
    assert sum(result.bytes_sent for result in results) / COUNT == pytest.approx(ideal, rel=0.02)


@pytest.mark.parametrize("compression", ["fp16", "int4"])
async def test_what_encoding_takes_away_three_times_is_still_somebodys(compression: str):
    """The weighted sum of what members count as sent is what the state has gained (`peer/ledger.py`)."""
    wires = twelve(compression=compression)
    parent, samples = wires[0].state.values, [16, 24, 32] * 4
    results = await wires.round(updates(wires), samples)
    one_digest(results)
    sent = sum(count / sum(samples) * result.sent for count, result in zip(samples, results, strict=True))
    np.testing.assert_allclose(results[0].state.values - parent, sent, atol=1e-6)


async def test_an_update_that_is_not_finite_is_left_out_by_its_group_alone():
    wires = twelve()
    deltas = updates(wires)
    deltas[5][17] = np.nan
    results = await wires.round(deltas)
    one_digest(results)
    assert all(result.rejected == {wires.ids[5]: "not finite"} for result in results)
    assert results[5].sent is None and all(len(result.accepted) == COUNT - 1 for result in results)


MOMENTS = [
    "round.part",
    "round.report",
    "round.decision",
    "round.sum",
    "round.result",
    "round.outcome",
    "round.vote",
]


@pytest.mark.parametrize("place", [0, 1, 3, 11])
async def test_one_of_twelve_falls_silent_and_all_others_commit_one_digest(place: int):
    """The root, the leader of another group (who would take over for the root), a second, and a plain member."""
    worlds = [twelve(compression="none") for _ in MOMENTS]
    await asyncio.gather(
        *(one_falls_silent(wires, place, moment) for wires, moment in zip(worlds, MOMENTS, strict=True))
    )


async def one_falls_silent(wires: Wires, place: int, moment: str) -> None:
    number = wires.next_round()
    victim = Seated(wires, number)[place]
    victim.silent_from, victim.silent_at = moment, 2  # somebody has heard it, others have not
    parent, deltas = wires[0].state.values, dict(zip(wires.ids, updates(wires), strict=True))
    results = by_id(wires, await wires.round(list(deltas.values()), number=number))
    assert wires.clock.now() < wires[0].desk.times(number).close + 2.0
    del results[victim.identity.peer_id]
    assert all(result.state for result in results.values()), (place, moment, [r.failure for r in results.values()])
    one_digest(list(results.values()))
    check_accounts(wires, number, parent, deltas, results)


def check_accounts(
    wires: Wires, number: int, parent: np.ndarray, deltas: dict[str, np.ndarray], results: dict[str, RoundResult]
) -> None:
    """A part of the state gains the mean of the groups that are in it, and exactly their members count it as sent."""
    peer_id, result = next(iter(results.items()))
    book = wires.replicas[peer_id].desk.book(0, number)
    gained = result.state.values - parent
    weights = {group: book.decisions[group].weights for group in book.outcome.counted}
    for part, (begin, end) in enumerate(book.bounds):
        averaged = book.outcome.parts.get(part)
        inside = [name for group in averaged.groups for name in weights[group]] if averaged else []
        mean = sum(deltas[name][begin:end] for name in inside) / len(inside) if inside else 0.0
        np.testing.assert_allclose(gained[begin:end], mean, atol=3e-7)  # values are near 1
        for name, each in results.items():
            sent = np.zeros(len(gained)) if each.sent is None else each.sent
            expected = deltas[name][begin:end] if name in inside else 0.0
            np.testing.assert_array_equal(sent[begin:end], expected)
    samples = 16 * sum(len(names) for names in weights.values())
    assert result.state.samples == samples and len(result.accepted) == samples // 16


async def test_a_list_that_a_dying_root_told_to_some_alone_costs_at_most_the_round():
    wires = twelve()
    number = wires.next_round()
    root = Seated(wires, number)[0]
    root.silent_from, root.silent_at = "round.list", 4
    results = await wires.round(updates(wires), number=number)
    assert len({result.state.digest for result in results if result.state}) <= 1
    root.silent = False
    assert wires.clock.now() < wires[0].desk.times(number).close + 2.0


async def test_a_group_whose_two_first_members_fall_silent_is_left_out_and_follows_all_the_same():
    wires = twelve()
    number = wires.next_round()
    seated = Seated(wires, number)
    leader, second, *rest = seated.group(2)
    for peer_id in (leader, second):
        wires.replicas[peer_id].silent_from = "round.decision"
    results = by_id(wires, await wires.round(updates(wires), number=number))
    alive = [result for peer_id, result in results.items() if peer_id not in (leader, second)]
    one_digest(alive)
    for peer_id in rest:  # its work is carried, and it holds the new state
        assert results[peer_id].sent is None and results[peer_id].rejected[peer_id] == "its group is left out"
    assert sorted(alive[0].accepted) == sorted({*wires.ids} - {*seated.group(2)})
    assert alive[0].state.samples == 16 * 2 * GROUP


async def test_a_group_that_the_outcome_does_not_reach_asks_those_who_vote_for_it():
    wires = twelve()
    number = wires.next_round()
    seated = Seated(wires, number)
    root = seated.order[0]
    wires.lost |= {(root, peer_id, "round.outcome") for peer_id in seated.group(2)}
    one_digest(await wires.round(updates(wires), number=number))


async def test_who_proposes_asks_for_a_decision_that_has_not_reached_it():
    wires = twelve()
    number = wires.next_round()
    seated = Seated(wires, number)
    root = seated.order[0]
    # Neither the leader's own message nor the means of the group's reducers bring it the decision of the third group.
    wires.lost |= {(peer_id, root, method) for peer_id in seated.group(2) for method in ("round.decision", "round.sum")}
    results = await wires.round(updates(wires), number=number)
    one_digest(results)
    assert all(len(result.accepted) == COUNT for result in results)


async def test_with_the_root_and_the_next_in_order_both_gone_nothing_commits_and_the_next_round_does():
    wires = twelve()
    number = wires.next_round()
    seated = Seated(wires, number)
    for place in (0, 1):
        seated[place].silent_from = "round.outcome"
        seated[place].silent_at = 1
    results = await wires.round(updates(wires), number=number)
    assert not any(result.state for result in results)
    for place in (0, 1):
        seated[place].silent_from, seated[place].silent = None, False
    one_digest(await wires.round(updates(wires)))


async def test_a_mean_that_its_group_cannot_have_made_is_kept_out_and_its_reducer_named():
    wires = twelve()
    number = wires.next_round()
    seated = Seated(wires, number)
    liar = seated[4]  # of the second group

    def alter(method: str, body: dict, blob: bytes) -> tuple[dict, bytes]:
        return body, np.full(len(blob) // 2, 6e4, dtype="<f2").tobytes() if method == "round.sum" else blob

    liar.alter = alter
    parent = wires[0].state.values
    results = by_id(wires, await wires.round(updates(wires), number=number))
    one_digest(list(results.values()))
    assert np.abs(results[wires.ids[0]].state.values - parent).max() < 0.1
    name = liar.identity.peer_id
    owners = [seated.order[part] for part in seated.seats.parts_of(4) if part != 4]
    assert owners and all("mean" in results[owner].rejected[name] for owner in owners)


@pytest.mark.parametrize("value", [6e4, np.nan])
async def test_who_owns_a_part_cannot_send_what_is_no_mean_of_the_groups(value: float):
    wires = twelve()
    number = wires.next_round()
    liar = Seated(wires, number)[4]

    def alter(method: str, body: dict, blob: bytes) -> tuple[dict, bytes]:
        own = method == "round.result" and body["part"] == 4
        return body, np.full(len(blob) // 2, value, dtype="<f2").tobytes() if own else blob

    liar.alter = alter
    parent = wires[0].state.values
    results = await wires.round(updates(wires), number=number)
    honest = [result for replica, result in zip(wires.replicas.values(), results, strict=True) if replica is not liar]
    one_digest(honest)
    assert np.abs(honest[0].state.values - parent).max() < 0.1
    assert any("mean" in result.rejected.get(liar.identity.peer_id, "") for result in honest)


async def test_members_that_cannot_be_reached_reduce_nothing_and_are_in_with_their_work():
    wires = twelve()
    number = wires.next_round()
    deltas = updates(wires)
    exchanges = [
        wires.exchange(replica, number, delta, 16)
        for replica, delta in zip(wires.replicas.values(), deltas, strict=True)
    ]
    for exchange in exchanges[:5]:
        exchange.reachable = False
    results = await wires.run(exchanges)
    one_digest(results)
    assert all(len(result.accepted) == COUNT for result in results)


async def test_groups_mix_from_round_to_round_and_every_round_commits():
    wires = twelve()
    met: set[frozenset[str]] = set()
    for _ in range(3):
        number = wires.next_round()
        one_digest(await wires.round(updates(wires), number=number))
        met |= {frozenset(Seated(wires, number).group(group)) for group in range(3)}
    assert len(met) == 9
