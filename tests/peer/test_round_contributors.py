"""Contributors in a round: no member waits for them, no claim of theirs counts unchecked, and each counts once."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Reply
from blockswarm.peer.exchange import Exchange, Guest
from blockswarm.peer.line import Line
from blockswarm.peer.round import RoundResult
from blockswarm.peer.states import State
from blockswarm.swarm.codec import decode, encode
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.policy.contributing import STALEST, staleness_discount
from blockswarm.swarm.policy.leader import leader_order
from tests.peer.test_round import one_digest, updates
from tests.peer.wires import Wires

SLOW = Identity.ephemeral()
SAMPLES = 32


def late_update(wires: Wires, seed: int = 9) -> np.ndarray:
    """What the contributor trained; of the size that training makes."""
    rng = np.random.default_rng(seed)
    return (1e-3 * rng.standard_normal(wires.manifest.parameters(wires.subject))).astype(np.float32)


def guest(
    wires: Wires, delta: np.ndarray, number: int, base: State, *, samples: int = SAMPLES, identity: Identity = SLOW
) -> Guest:
    """An update that the contributor has signed for round ``number``."""
    data = encode(delta, wires.manifest.averaging.compression)
    word = Contribution.make(
        identity,
        wires.manifest.digest,
        subject=wires.subject,
        round_number=number,
        base_round=base.round,
        base=base.digest,
        samples=samples,
        values=hashlib.sha256(data).digest(),
    )
    return Guest(word, data)


async def one_round(wires: Wires, number: int, sponsored: dict[int, list[Guest]]) -> list[RoundResult]:
    """A round in which members of 16 samples each bring in the given guests."""
    exchanges: list[Exchange] = []
    for index, (replica, delta) in enumerate(zip(wires.replicas.values(), updates(wires), strict=True)):
        exchange = wires.exchange(replica, number, delta, 16)
        exchange.guests = tuple(sponsored.get(index, ()))
        exchanges.append(exchange)
    return await wires.run(exchanges)


@pytest.mark.parametrize(("count", "choices"), [(1, {}), (3, {}), (3, {"compression": "int4"}), (4, {"group_size": 2})])
async def test_a_late_update_is_in_the_mean_at_its_discount_and_everybody_holds_the_same_bytes(
    count: int, choices: dict[str, object]
):
    wires = Wires(count, first=3, **choices)  # two rounds have gone by without a commit
    number, base = wires.next_round(), wires[0].state
    late = late_update(wires)
    contribution = guest(wires, late, number, base)
    results = await one_round(wires, number, {0: [contribution]})
    digest = one_digest(results)
    age = number - 1
    weight = SAMPLES * staleness_discount(age, 0.5)
    coding = wires.manifest.averaging.compression
    expected = (16 * sum(updates(wires)) + weight * decode(contribution.data, len(late), coding)) / (
        16 * count + weight
    )
    atol = 3e-4 if coding == "int4" else 5e-6
    np.testing.assert_allclose(results[0].state.values - base.values, expected, atol=atol)
    assert results[0].state.samples == int(16 * count + weight) and results[0].state.digest == digest
    for result in results:
        assert result.contributed == {SLOW.peer_id: age} and SLOW.peer_id not in result.rejected
        assert sorted(result.accepted) == sorted(result.members) == sorted(wires.ids)  # participation is of members


async def test_two_sponsors_bring_the_same_contributor_in_once():
    wires = Wires(3)
    number = wires.next_round()
    contribution = guest(wires, late_update(wires), number, wires[0].state)
    results = await one_round(wires, number, {0: [contribution], 2: [contribution]})
    one_digest(results)
    age = number - 1
    assert results[1].contributed == {SLOW.peer_id: age}
    assert results[1].state.samples == int(48 + SAMPLES * staleness_discount(age, 0.5))


async def test_a_sponsor_sends_a_reducer_the_contributors_slice_when_its_own_is_there():
    wires = Wires(3)
    number = wires.next_round()
    sponsor = wires[0]
    exchange = wires.exchange(sponsor, number, updates(wires)[0], 16)
    exchange.guests = (guest(wires, late_update(wires), number, sponsor.state),)
    call, seen = exchange.caller.call, []

    async def slowly(peer_id: str, method: str, body: Mapping[str, Any], **rest: Any) -> Reply:
        if method == "round.part":
            seen.append((peer_id, "of" in body, "begins"))
            await asyncio.sleep(0.02)
        reply = await call(peer_id, method, body, **rest)
        if method == "round.part":
            seen.append((peer_id, "of" in body, "is there"))
        return reply

    exchange.caller.call = slowly
    others = [wires.exchange(replica, number, updates(wires)[0], 16) for replica in list(wires.replicas.values())[1:]]
    results = await wires.run([exchange, *others])
    one_digest(results)
    assert results[1].contributed.keys() == {SLOW.peer_id}
    for peer_id in wires.ids[1:]:
        told = [entry[1:] for entry in seen if entry[0] == peer_id]
        assert told == [(False, "begins"), (False, "is there"), (True, "begins"), (True, "is there")]


@pytest.mark.parametrize("scale", [1.0, 1e3])
async def test_claimed_samples_buy_no_more_than_the_cap_and_do_not_excuse_an_absurd_length(scale: float):
    wires = Wires(3)
    number = wires.next_round()
    contribution = guest(wires, scale * late_update(wires), number, wires[0].state, samples=10**9)
    results = await one_round(wires, number, {0: [contribution]})
    one_digest(results)
    if scale > 1:
        assert results[1].rejected[SLOW.peer_id].startswith("norm ") and results[1].contributed == {}
    cap = wires.manifest.averaging.max_weight_ratio * 16 * staleness_discount(number - 1, 0.5)
    assert results[1].state.samples == int(48 + (cap if scale == 1 else 0))


REASONS = {"unknown": "unknown base", "future": "stale base", "old": "stale base", "broken": "not finite"}


@pytest.mark.parametrize("leader_knows", [True, False])
async def test_hostile_ages_and_bases_are_refused_by_name_and_cost_nobody_the_round(leader_knows: bool):
    """An honest leader leaves them out; where one lists them all the same, the reducers speak against them."""
    wires = Wires(4, first=STALEST + 2)
    number, genesis = wires.next_round(), wires[0].state
    base = State.make(wires.subject, number - 1, genesis.values + np.float32(0.1), samples=1000)
    for replica in wires.replicas.values():  # the state of the round before, and the only one that is known here
        replica.state = base
        replica.desk.line = lambda subject: Line.beginning(base)
    bases = {
        "unknown": dataclasses.replace(base, digest=b"x" * 32),
        "future": dataclasses.replace(base, round=number),
        "old": genesis,
        "broken": base,
    }
    cases = {}
    for name, state in bases.items():
        delta = late_update(wires) * np.float32(np.nan if name == "broken" else 1.0)
        cases[name] = guest(wires, delta, number, state, identity=Identity.ephemeral())
    if not leader_knows:
        order = leader_order(wires.ids, run_digest=wires.manifest.digest, subject=0, round_number=number)
        wires.replicas[order[0]].desk.book(wires.subject, number).guest_problem = lambda word: ""
    results = await one_round(wires, number, {index: [case] for index, case in enumerate(cases.values())})
    one_digest(results)
    told = {}
    for result in results:
        assert sorted(result.accepted) == sorted(wires.ids) and result.contributed == {}
        told |= result.problems | result.rejected
    for name, case in cases.items():
        assert told[case.contribution.peer_id].startswith(REASONS[name])
        # Broken bytes are the sponsor's doing, who had to look first; it is not the contributor that is kept out.
        assert case.contribution.peer_id not in wires[0].desk.standing(0).out(number + 1)


async def test_another_ones_word_or_a_word_for_another_round_gets_nobody_into_a_list():
    wires = Wires(3)
    number = wires.next_round()
    replayed = guest(wires, late_update(wires), number + 1, wires[0].state)
    results = await one_round(wires, number, {0: [replayed]})
    one_digest(results)
    assert all(result.guests == [] for result in results)
