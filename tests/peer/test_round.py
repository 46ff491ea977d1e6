"""One round under faults: whoever commits holds the same bytes, and who was left out is named."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from blockswarm.dht.errors import RpcError
from blockswarm.dht.rpc import Reply
from blockswarm.peer.round import RoundResult, run_round
from blockswarm.swarm.policy.leader import leader_order
from blockswarm.swarm.statements import Certificate
from tests.peer.wires import Wires


def updates(wires: Wires, scale: float = 1e-3) -> list[np.ndarray]:
    """A random update for every replica (seed 0), values of the size that training makes."""
    rng = np.random.default_rng(0)
    size = wires.manifest.parameters(wires.subject)
    return [(scale * rng.standard_normal(size)).astype(np.float32) for _ in wires.ids]


def one_digest(results: list[RoundResult]) -> bytes:
    """The digest all of them committed."""
    assert [result.failure for result in results] == [""] * len(results)
    digests = {result.state.digest for result in results if result.state}
    assert len(digests) == 1
    return digests.pop()


async def test_replicas_commit_the_weighted_mean_of_their_updates_as_the_same_bytes():
    wires = Wires(3)
    deltas = updates(wires)
    parent = wires[0].state.values
    results = await wires.round(deltas, [16, 32, 48])
    one_digest(results)
    expected = parent + (16 * deltas[0] + 32 * deltas[1] + 48 * deltas[2]) / 96
    np.testing.assert_allclose(results[0].state.values, expected, atol=5e-6)  # fp16 on the wire
    assert results[0].state.samples == 96
    certificate = Certificate.open(results[0].state.certificate, wires.manifest.digest)
    assert certificate.digest == results[0].state.digest and len(certificate.voters) >= 2
    assert all(sorted(result.accepted) == sorted(wires.ids) for result in results)


async def test_a_round_that_is_over_keeps_what_others_can_ask_for_and_no_update():
    wires = Wires(3)
    number = wires.next_round()
    one_digest(await wires.round(updates(wires), number=number))
    for replica in wires.replicas.values():
        book = replica.desk.book(wires.subject, number)
        assert len(book.results) == 3 and book.certificate is not None
        assert not book.share_values and not book.sums


async def test_alone_on_record_a_replica_commits_its_own_update_and_says_so():
    wires = Wires(1)
    (delta,) = updates(wires)
    parent = wires[0].state.values
    (result,) = await wires.round([delta])
    assert result.lone and result.failure == ""
    np.testing.assert_array_equal(result.state.values, parent + delta)  # nothing travels: nothing is rounded to 16 bits


async def test_who_may_have_lost_touch_with_the_others_carries_its_work_instead_of_committing_alone():
    wires = Wires(1)
    exchange = wires.exchange(wires[0], wires.next_round(), updates(wires)[0], 16)
    exchange.may_be_alone = False
    await wires.clock.sleep_until(exchange.times.train_end)
    result = await run_round(exchange)
    assert result.state is None and result.sent is None
    assert result.failure == "nobody was met, and this peer may have lost touch with those that are there"


@pytest.mark.parametrize(("share", "lone"), [(0.0, True), (0.7, False)])
async def test_who_comes_too_late_to_hear_the_others_does_not_commit_alone(share: float, lone: bool):
    """The other one does not answer: it may be gone, or may have called before."""
    wires = Wires(2)
    wires[1].silent = True
    exchange = wires.exchange(wires[0], wires.next_round(), updates(wires)[0], 16)
    span = exchange.times.meet_end - exchange.times.train_end
    await wires.clock.sleep_until(exchange.times.train_end + share * span)
    result = await run_round(exchange)
    await exchange.finish()
    assert (result.state is not None and result.lone) == lone
    assert result.failure == (
        "" if lone else "nobody was met, and this peer may have lost touch with those that are there"
    )


@pytest.mark.parametrize(("fails_at", "lone"), [(0.7, True), (0.97, False)])
async def test_who_comes_late_commits_alone_beside_one_that_is_gone_not_beside_one_that_is_silent(
    fails_at: float, lone: bool
):
    """A call to a process that is gone fails at once; one to a process that is stopped fails as the meeting ends."""
    wires = Wires(2)
    exchange = wires.exchange(wires[0], wires.next_round(), updates(wires)[0], 16)
    begin, span = exchange.times.train_end, exchange.times.meet_end - exchange.times.train_end

    class Failing:
        async def call(self, peer_id: str, method: str, body: Any, **options: Any) -> Reply:
            await wires.clock.sleep_until(begin + fails_at * span)
            raise RpcError("unreachable", "no answer")

    exchange.caller = Failing()
    await wires.clock.sleep_until(begin + 0.6 * span)
    result = await run_round(exchange)
    await exchange.finish()
    assert result.lone == lone


async def test_replicas_that_do_not_know_of_each_other_yet_find_each_other_before_they_commit_alone():
    wires = Wires(2)
    wires.on_record = False
    results = await wires.round(updates(wires))
    one_digest(results)
    assert {len(result.members) for result in results} == {2}


async def test_left_alone_a_replica_asks_once_more_and_does_not_commit_beside_a_newer_state():
    wires = Wires(2)
    first, second = wires[0], wires[1]
    number = wires.next_round()
    deltas = updates(wires)
    exchange = wires.exchange(second, number, deltas[1], 16)
    # The first is in the middle of a lone round as the second calls: it answers with the old state, and calls nobody.
    lone = wires.exchange(first, number, deltas[0], 16)
    lone.replicas = ()

    async def nobody() -> tuple[str, ...]:
        return ()

    lone.look_again = nobody
    await wires.clock.sleep_until(exchange.times.train_end)
    late = asyncio.create_task(run_round(exchange))
    book = first.desk.book(0, number)
    assert await book.wait(lambda: second.identity.peer_id in book.heard, 5.0)
    book.heard.clear()
    book.present.clear()
    committed = await run_round(lone)
    assert committed.lone and committed.state is not None
    first.state = committed.state
    result = await late
    assert result.state is None and "behind" in result.failure
    for each in (exchange, lone):
        await each.finish()


@pytest.mark.parametrize("count", [2, 5, 8])
async def test_replicas_that_start_at_the_same_instant_agree_on_one_leader(count: int):
    wires = Wires(count)
    results = await wires.round(updates(wires))
    one_digest(results)
    assert {len(result.members) for result in results} == {count}
    assert len({result.members[0] for result in results}) == 1


@pytest.mark.parametrize("count", [4, 8])
async def test_the_first_two_in_order_that_do_not_hear_each_other_do_not_both_lead(count: int):
    """Each would make a list without the other, and both lists could get a quorum of the rest."""
    for seed in range(6):
        wires = Wires(count, seed=seed)
        number = wires.next_round()
        first, second, *_ = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
        wires.lost |= {(first, second, method) for method in wires[0].methods}
        wires.lost |= {(second, first, method) for method in wires[0].methods}
        deliver, rng = wires.deliver, np.random.default_rng(seed)

        async def some_time_later(*message: Any, deliver: Any = deliver, rng: Any = rng) -> Reply:
            await asyncio.sleep(rng.uniform(0.001, 0.03))
            return await deliver(*message)

        wires.deliver = some_time_later  # else all of them hear the one that comes first in the loop first
        results = await wires.round(updates(wires), number=number)
        assert len({result.state.digest for result in results if result.state}) == 1


async def test_who_is_not_understood_by_the_others_leads_nobody():
    """It hears one of them and takes the others for out of reach: its list would be one beside theirs."""
    wires = Wires(4)
    number = wires.next_round()
    odd, *others = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)

    def misspelt(method: str, body: Any, blob: bytes) -> tuple[Any, bytes]:
        return (body | {"parent": b"short"} if method == "round.meet" else body), blob

    wires.replicas[odd].alter = misspelt
    wires.lost |= {(peer_id, odd, "round.meet") for peer_id in others[1:]}
    results = dict(zip(wires.ids, await wires.round(updates(wires), number=number), strict=True))
    assert "do not understand this peer" in (results[odd].failure or "")
    for peer_id in others:
        assert sorted(results[peer_id].members) == sorted(others) and results[peer_id].state is not None


@pytest.mark.parametrize("unaware", [1, 2, 3])
async def test_a_newcomer_that_knows_of_no_silent_replica_takes_its_turn_after_those_that_do(unaware: int):
    """The first in order was killed, and the others wait for it; who never heard of it must not be as early as they."""
    wires = Wires(4)
    number = wires.next_round()
    silent, *order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    wires.replicas[silent].silent = True
    exchanges = [
        wires.exchange(replica, number, delta, 16)
        for replica, delta in zip(wires.replicas.values(), updates(wires), strict=True)
    ]
    newcomer = exchanges[wires.ids.index(order[unaware - 1])]
    newcomer.replicas = tuple(peer_id for peer_id in newcomer.replicas if peer_id != silent)
    deliver = wires.deliver

    async def over_a_line(*message: Any) -> Reply:
        await asyncio.sleep(0.02)
        return await deliver(*message)

    wires.deliver = over_a_line
    results = dict(zip(wires.ids, await wires.run(exchanges), strict=True))
    for peer_id in order:
        assert sorted(results[peer_id].accepted) == sorted(order), results[peer_id].failure


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "not finite"),
        ("norm", "norm"),
        ("shape", "wrong shape"),
        ("short", "wrong length"),
        ("long", "wrong length"),
    ],
)
async def test_a_bad_update_is_left_out_and_its_sender_named(fault: str, reason: str):
    wires = Wires(3)
    deltas = updates(wires)
    bad = wires[1]

    def alter(method: str, body: dict, blob: bytes) -> tuple[dict, bytes]:
        if method == "round.part":
            if fault == "shape":
                body = {**body, "values": body["values"] + 7}
            elif fault == "short":
                blob = blob[:-2]
            elif fault == "long":
                blob += b"\0" * 100
        return body, blob

    bad.alter = alter
    if fault == "nan":
        deltas[1][17] = np.nan
    if fault == "norm":
        deltas[1] *= 1e3
    results = await wires.round(deltas)
    honest = [results[0], results[2]]
    one_digest(honest)
    for result in honest:
        assert reason in result.rejected[bad.identity.peer_id]
        assert bad.identity.peer_id not in result.accepted
        assert len(result.accepted) == 2


async def test_whose_updates_are_refused_again_is_kept_out_and_told_until_it_may_come_back():
    wires = Wires(3)
    bad = wires.ids[1]

    async def one_round(wrong: bool) -> list[RoundResult]:
        deltas = updates(wires)
        if wrong:
            deltas[1][:] = np.nan
        return await wires.round(deltas)

    first = await one_round(wrong=True)
    assert first[0].rejected == {bad: "not finite"} and first[0].kept_out == {}
    second = await one_round(wrong=True)
    assert second[0].kept_out == second[2].kept_out == {bad: second[0].round + 2}
    out = await one_round(wrong=False)
    assert bad not in out[0].members and out[0].state is not None and len(out[0].accepted) == 2
    assert out[1].state is None and ("kept out until round" in out[1].failure or "acknowledged" in out[1].failure)
    wires[1].state = out[0].state  # it catches up meanwhile
    back = await one_round(wrong=False)
    assert set(back[0].accepted) == set(wires.ids) and back[0].kept_out == {}


@pytest.mark.parametrize("value", [60000.0, np.nan])
async def test_a_reducer_cannot_send_what_is_no_mean_of_the_updates(value: float):
    """Its part is left out of the state, it is named, and the others stay identical."""
    wires = Wires(3)
    number = wires.next_round()
    order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    liar = wires.replicas[order[2]]

    def alter(method: str, body: dict, blob: bytes) -> tuple[dict, bytes]:
        if method == "round.result":
            blob = np.full(len(blob) // 2, value, dtype="<f2").tobytes()
        return body, blob

    liar.alter = alter
    parent = wires[0].state.values
    results = await wires.round(updates(wires), number=number)
    honest = [result for replica, result in zip(wires.replicas.values(), results, strict=True) if replica is not liar]
    one_digest(honest)
    assert all("mean" in result.rejected[liar.identity.peer_id] for result in honest)
    assert np.abs(honest[0].state.values - parent).max() < 0.1


MOMENTS = ["round.list", "round.part", "round.report", "round.decision", "round.result", "round.outcome", "round.vote"]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sending", [1, 2])
async def test_one_of_three_falls_silent_and_the_others_stay_identical(place: int, sending: int):
    """At any moment, in any role, told to nobody or to one of two: the other two commit one digest."""
    worlds = [Wires(3) for _ in MOMENTS]
    await asyncio.gather(
        *(
            one_of_three_falls_silent(wires, place, moment, sending)
            for wires, moment in zip(worlds, MOMENTS, strict=True)
        )
    )


async def one_of_three_falls_silent(wires: Wires, place: int, moment: str, sending: int) -> None:
    number = wires.next_round()
    order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    victim = wires.replicas[order[place]]
    victim.silent_from, victim.silent_at = moment, sending
    results = await wires.round(updates(wires), number=number)
    others = [result for replica, result in zip(wires.replicas.values(), results, strict=True) if replica is not victim]
    assert wires.clock.now() < wires[0].desk.times(number).close + 2.0
    # Only a list that a dying leader kept to itself costs the round; at every later moment it is saved.
    if place == 0 and moment == "round.list":
        assert len({result.state.digest for result in others if result.state}) <= 1
    else:
        assert all(result.state for result in others), (place, moment, [result.failure for result in others])
        one_digest(others)


async def test_a_missing_part_is_fetched_from_the_next_member_while_the_first_does_not_answer():
    """The leader stops after proposing the outcome, and one of the others never got the part that it reduced."""
    wires = Wires(3)
    number = wires.next_round()
    leader, other, third = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
    wires.lost |= {(leader, third, "round.result"), (third, leader, "round.fetch")}
    wires.lost |= {(leader, other, "round.vote"), (leader, third, "round.vote")}
    results = dict(zip(wires.ids, await wires.round(updates(wires), number=number), strict=True))
    one_digest([results[other], results[third]])


async def test_two_replicas_one_falls_silent_and_the_survivor_commits_the_next_round_alone():
    wires = Wires(2)
    wires[1].silent_from = "round.part"
    deltas = updates(wires)
    first = (await wires.round(deltas))[0]
    assert first.state is None and ("votes" in first.failure or "decision" in first.failure)
    second = (await wires.round(deltas))[0]
    assert second.lone and second.state is not None


async def test_a_replica_with_an_older_state_learns_that_it_is_behind_and_commits_nothing():
    wires = Wires(3)
    wires[2].silent = True
    deltas = updates(wires)
    await wires.round(deltas)
    wires[2].silent = False
    results = await wires.round(deltas)
    one_digest(results[:2])
    assert results[2].state is None and results[2].ahead
    assert results[2].ahead[0].digest in {wires[0].state.digest, results[0].parent}


async def test_a_replica_that_wakes_after_the_deadline_sends_nothing():
    wires = Wires(2)
    number = wires.next_round()
    sleeper = wires[0]
    exchange = wires.exchange(sleeper, number, updates(wires)[0], 16)
    await wires.clock.sleep_until(exchange.times.meet_end + 0.05)
    result = await run_round(exchange)
    assert result.state is None and "after its deadline" in result.failure
    assert not wires[1].desk.book(0, number).heard
