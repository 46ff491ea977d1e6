"""Rounds of replicas whose lines differ: the slow reduce less, and everybody still commits the same bytes."""

import asyncio

import numpy as np
import pytest

from blockswarm.peer.book import EntryRefused
from blockswarm.swarm.statements import MemberList
from tests.peer.test_round import one_digest, updates
from tests.peer.wires import Wires

COUNT = 12


def with_lines(rates: list[int], **choices: object) -> Wires:
    wires = Wires(len(rates), **choices)
    for replica, rate in zip(wires.replicas.values(), rates, strict=True):
        replica.desk.meter.declared = rate
    return wires


def sizes(wires: Wires, number: int) -> list[int]:
    """How many values each replica reduces, in the wires' own order, by the first one's book."""
    book = wires[0].desk.book(0, number)
    order = book.require_members().members
    bounds = dict(zip(order, book.bounds, strict=True))
    return [bounds[peer_id][1] - bounds[peer_id][0] for peer_id in wires.ids]


async def test_a_slow_uplink_reduces_less_and_the_mean_is_the_same():
    wires = with_lines([1000, 250, 1000], compression="none")
    number, deltas, parent = wires.next_round(), updates(wires), wires[0].state.values
    results = await wires.round(deltas, number=number)
    one_digest(results)
    np.testing.assert_allclose(results[0].state.values, parent + sum(deltas) / 3, atol=3e-7)
    parts = sizes(wires, number)
    assert abs(parts[0] - 4 * parts[1]) <= 5 * 64 and abs(parts[0] - parts[2]) <= 64


@pytest.mark.parametrize("compression", ["none", "int8", "int4"])
@pytest.mark.parametrize("group_size", [4, 16])
async def test_twelve_with_lines_of_all_speeds_commit_one_digest(group_size: int, compression: str):
    rates = [10**4 * (1 + index) ** 2 for index in range(COUNT)]
    wires = with_lines(rates, group_size=group_size, compression=compression)
    number = wires.next_round()
    results = await wires.round(updates(wires), number=number)
    one_digest(results)
    assert all(len(result.accepted) == COUNT for result in results)
    books = [replica.desk.book(0, number) for replica in wires.replicas.values()]
    assert len({book.bounds for book in books}) == 1
    if group_size >= COUNT:
        parts = sizes(wires, number)
        assert parts[0] < parts[3] < parts[5] and sum(parts) == books[0].values


async def test_the_fastest_of_six_is_killed_and_the_others_commit_one_digest():
    """It reduces more than any other: what it held stays as it was, and nothing else is lost."""
    moments = ["round.part", "round.report", "round.result", "round.vote"]
    worlds = [with_lines([1000] * 5 + [10**6], compression="int4") for _ in moments]
    await asyncio.gather(*(the_fastest_is_killed(wires, moment) for wires, moment in zip(worlds, moments, strict=True)))


async def the_fastest_is_killed(wires: Wires, moment: str) -> None:
    number = wires.next_round()
    wires[5].silent_from = moment
    results = await wires.round(updates(wires), number=number)
    one_digest(results[:5])
    assert sizes(wires, number)[-1] <= 4 / 9 * wires.manifest.parameters(0) + 64


async def test_who_changes_a_members_line_in_the_list_is_refused_by_that_member():
    wires = with_lines([1000, 1000])
    number = wires.next_round()
    exchange = wires.exchange(wires[1], number, updates(wires)[1], 16)
    leader = wires[0].identity
    members = dict.fromkeys((leader.peer_id, exchange.own_id))
    results = await wires.run([exchange, wires.exchange(wires[0], number, updates(wires)[0], 16)])
    one_digest(results)
    book = wires[1].desk.book(0, number)
    book.members = None
    forged = MemberList.make(
        leader,
        wires.manifest.digest,
        subject=0,
        round_number=number,
        parent=exchange.parent.digest,
        samples=dict.fromkeys(members, 16),
        reachable=dict.fromkeys(members, True),
    )
    with pytest.raises(EntryRefused, match="the line that it announced"):
        book.accept_list(forged)
