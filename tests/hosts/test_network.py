"""Packets between hosts, on a clock of our own: when each arrives, and which do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hosts import FREE, Link
from benchmarks.hosts.network import PACKET_COST, Network, Pipe, Traffic

MBIT_8 = 1e6
"""8 Mbit/s in bytes per second: a packet of 1000 bytes takes a millisecond."""


def network(hosts: int = 2, **options: Any) -> Network:
    free = {"link": FREE, "uplink": FREE, "downlink": FREE, "seed": 0}
    return Network([[address(host)] for host in range(hosts)], **free | options)


def address(host: int) -> bytes:
    return bytes([10, 0, 0, host + 1])


def packet(target: int, size: int = 1000, mark: int = 0) -> bytes:
    """An IPv4 packet as far as the network reads it: version and destination."""
    return bytes([0x45]) + bytes(15) + address(target) + bytes([mark]) + bytes(size - 21)


def arrivals(net: Network, until: float = math.inf) -> list[tuple[float, int, int]]:
    """(when, target, mark) of all packets, letting time pass from one to the next."""
    found = []
    while (now := net.next_arrival) <= until and now < math.inf:
        found += [(now, target, data[20]) for target, data in net.arrivals(now)]
    return found


def times(net: Network) -> list[float]:
    return [when for when, _, _ in arrivals(net)]


def test_a_free_line_delivers_at_once() -> None:
    net = network()
    net.send(5.0, 0, packet(1))
    assert list(net.arrivals(5.0)) == [(1, packet(1))]
    assert net.next_arrival == math.inf


def test_a_delay_is_the_time_of_travel() -> None:
    net = network(link=Link(delay_ms=40))
    net.send(5.0, 0, packet(1))
    assert not list(net.arrivals(5.039))
    assert times(net) == pytest.approx([5.04])


def test_packets_are_sent_one_after_the_other_and_travel_together() -> None:
    net = network(link=Link(delay_ms=40, rate_mbit=8))
    for _ in range(3):
        net.send(0.0, 0, packet(1))
    assert times(net) == pytest.approx([0.041, 0.042, 0.043])


def test_each_direction_is_a_line_of_its_own() -> None:
    net = network()
    net.path(0, 1).become(Link(delay_ms=10))
    net.path(1, 0).become(Link(delay_ms=300))
    net.send(0.0, 0, packet(1))
    net.send(0.0, 1, packet(0))
    assert [(round(when, 6), target) for when, target, _ in arrivals(net)] == [(0.01, 1), (0.3, 0)]


@pytest.mark.parametrize("start", [0.0, 17_333.123, 1e7])
def test_a_full_queue_drops_what_comes_next_and_has_room_again_when_something_is_sent(start: float) -> None:
    net = network(link=Link(rate_mbit=8, queue_bytes=3000))
    for mark in range(5):
        net.send(start, 0, packet(1, mark=mark))
    net.send(start + 0.001, 0, packet(1, mark=9))
    assert [mark for _, _, mark in arrivals(net)] == [0, 1, 2, 9]
    assert traffic(net) == Traffic(sent=6, sent_bytes=6000, delivered=4, delivered_bytes=4000, overflowed=2)


def test_an_uplink_is_shared_by_everything_its_host_sends() -> None:
    net = network(3, uplink=Link(rate_mbit=8))
    net.send(0.0, 0, packet(1))
    net.send(0.0, 0, packet(2))
    net.send(0.0, 1, packet(2))  # another host's uplink
    assert [(round(when, 6), target) for when, target, _ in arrivals(net)] == [(0.001, 1), (0.001, 2), (0.002, 2)]


def test_a_downlink_is_shared_by_everything_sent_to_its_host_in_order_of_arrival() -> None:
    net = network(3, downlink=Link(rate_mbit=8))
    net.path(0, 2).become(Link(delay_ms=50))
    net.send(0.0, 0, packet(2, mark=1))  # there at 50 ms
    net.send(0.0495, 1, packet(2, mark=2))  # sent later, there before it
    assert [(round(when, 6), mark) for when, _, mark in arrivals(net)] == [(0.0505, 2), (0.0515, 1)]


def test_a_cut_drops_what_is_sent_and_what_is_under_way() -> None:
    net = network(3, link=Link(delay_ms=10))
    net.send(0.0, 0, packet(1))
    net.send(0.0, 1, packet(0))
    net.send(0.0, 0, packet(2))
    net.sever([(0, 1)], True)
    net.send(0.001, 0, packet(1))
    assert [target for _, target, _ in arrivals(net)] == [0, 2]
    assert traffic(net).cut == 2
    net.sever([(0, 1)], False)
    net.send(1.0, 0, packet(1))
    assert times(net) == pytest.approx([1.01])


def test_what_was_under_way_stays_dropped_when_the_cut_is_healed_before_its_time() -> None:
    net = network(3, link=Link(delay_ms=300))
    for mark in range(20):
        net.send(mark / 1000, 0, packet(1, mark=mark))
        net.send(mark / 1000, 0, packet(2, mark=mark))
        net.send(mark / 1000, 1, packet(2, mark=100 + mark))
    net.sever([(0, 1), (1, 2)], True)
    net.sever([(0, 1), (1, 2)], False)
    net.send(0.1, 0, packet(1, mark=99))
    assert [(target, mark) for _, target, mark in arrivals(net)] == [*((2, mark) for mark in range(20)), (1, 99)]
    assert traffic(net) == Traffic(sent=21, sent_bytes=21_000, delivered=1, delivered_bytes=1000, cut=20)
    assert traffic(net, 1, 2).cut == 20


def test_packets_to_nobody_are_counted_and_dropped() -> None:
    net = network()
    net.send(0.0, 0, packet(77))
    net.send(0.0, 0, packet(0))  # a host's own packets do not come to us, unless somebody forges them
    assert net.strays == 2
    assert not arrivals(net)


def test_the_same_seed_loses_the_same_packets_whatever_happens_elsewhere() -> None:
    def survivors(seed: int, noise: int) -> list[int]:
        net = network(3, link=Link(loss=0.3), seed=seed)
        for mark in range(200):
            net.send(0.0, 0, packet(1, mark=mark))
            for _ in range(noise):
                net.send(0.0, 1, packet(2))
        return [mark for _, target, mark in arrivals(net) if target == 1]

    assert survivors(1, noise=0) == survivors(1, noise=3) != survivors(2, noise=0)
    assert 110 < len(survivors(1, noise=0)) < 170


def test_what_changes_the_line_leaves_packets_under_way_alone() -> None:
    net = network(link=Link(delay_ms=300))
    net.send(0.0, 0, packet(1, mark=1))
    net.path(0, 1).become(Link(delay_ms=10))
    net.send(0.1, 0, packet(1, mark=2))
    assert [(round(when, 6), mark) for when, _, mark in arrivals(net)] == [(0.11, 2), (0.3, 1)]


def test_what_waits_to_be_sent_stays_ahead_when_the_line_changes() -> None:
    net = network(3, link=Link(rate_mbit=8), uplink=Link(rate_mbit=8))
    for mark in range(3):
        net.send(0.0, 0, packet(1, mark=mark))
    net.uplinks[0].become(Link(rate_mbit=16))  # 0.5 ms a packet
    net.path(0, 1).become(FREE)
    net.send(0.0, 0, packet(2, mark=3))  # the uplink is busy until 3 ms
    net.send(0.0, 0, packet(1, mark=4))  # and the line until 4 ms, when packet 2 is through
    assert [(round(when, 6), mark) for when, _, mark in arrivals(net)] == [
        (0.002, 0),
        (0.003, 1),
        (0.004, 2),
        (0.004, 4),
        (0.0045, 3),
    ]


def test_a_backlog_from_before_a_change_does_not_fill_the_new_queue() -> None:
    pipe, counts = Pipe(Link(rate_mbit=8, queue_bytes=10_000), "seed"), Traffic()
    for _ in range(10):
        pipe.enter(0.0, 1000, counts)  # 10 ms of it
    pipe.become(Link(rate_mbit=80, queue_bytes=3000))
    entered = [pipe.enter(0.0, 1000, counts) for _ in range(5)]
    assert entered == [*(pytest.approx(when) for when in (0.0101, 0.0102, 0.0103)), None, None]
    assert counts.overflowed == 2


def test_no_more_is_under_way_than_may_be_and_room_comes_back_however_packets_leave() -> None:
    net = network(3, link=Link(delay_ms=60_000), downlink=Link(rate_mbit=8), most=5 * (1000 + PACKET_COST))
    for mark in range(7):
        net.send(0.0, 0, packet(1 + mark % 2, mark=mark))
    assert net.lateness.overfull == traffic(net, 0, 1).overflowed + traffic(net, 0, 2).overflowed == 2
    net.sever([(0, 1)], True)  # drops three
    for mark in (7, 8, 9, 10):
        net.send(1.0, 0, packet(2, mark=mark))
    assert [mark for _, _, mark in arrivals(net)] == [1, 3, 7, 8, 9]
    for mark in range(6):  # all have arrived
        net.send(100.0, 0, packet(2, mark=mark))
    assert [mark for _, _, mark in arrivals(net)] == [0, 1, 2, 3, 4]
    assert net.lateness.overfull == 4


def test_lateness_is_counted_when_somebody_looks_too_late() -> None:
    net = network(link=Link(delay_ms=10))
    net.send(0.0, 0, packet(1))
    net.send(0.0, 0, packet(1))
    assert len(list(net.arrivals(0.0105))) == 2
    net.send(1.0, 0, packet(1))
    list(net.arrivals(1.05))
    assert (net.lateness.packets, net.lateness.late) == (3, 1)
    assert net.lateness.worst_ms == pytest.approx(40)


@given(
    gaps=st.lists(st.floats(0, 0.01), min_size=1, max_size=50),
    sizes=st.lists(st.integers(40, 1500), min_size=50, max_size=50),
    queue=st.integers(1500, 20_000),
)
def test_a_line_never_carries_more_than_its_rate_nor_keeps_more_than_its_queue(
    gaps: Sequence[float], sizes: Sequence[int], queue: int
) -> None:
    pipe, counts = Pipe(Link(rate_mbit=8, queue_bytes=queue), "seed"), Traffic()
    now, passed = 0.0, []
    for gap, size in zip(gaps, sizes, strict=False):
        now += gap
        if (through := pipe.enter(now, size, counts)) is not None:
            passed.append((now, through, size))
    for place, (entered, through, size) in enumerate(passed):
        assert through >= entered + size / MBIT_8 - 1e-9
        assert through - entered <= queue / MBIT_8 + 2e-7
        if place:
            assert through - passed[place - 1][1] >= size / MBIT_8 - 1e-9
    assert len(passed) + counts.overflowed == len(gaps)


def traffic(net: Network, source: int = 0, target: int = 1) -> Traffic:
    return next(counts for a, b, counts in net.traffic() if (a, b) == (source, target))
