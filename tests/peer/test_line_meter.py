"""What a line carries, learned from the parts that travel on it."""

from blockswarm.peer.line_meter import KEPT, LEAST_BYTES, LineMeter, OneWay
from blockswarm.swarm.policy.parts import Bandwidth

MB = 10**6


def test_transfers_of_one_phase_share_the_line_and_add_up():
    way = OneWay()
    for _ in range(3):
        way.begin((1, "round.part"), 100.0)
    for _ in range(3):
        way.end((1, "round.part"), MB, 102.0)
    assert way.rate == 3 * MB // 2


def test_one_slow_peer_at_the_end_does_not_make_the_line_slow():
    way = OneWay()
    way.begin((1, "round.part"), 0.0)
    way.end((1, "round.part"), 2 * MB, 1.0)
    way.end((1, "round.part"), MB, 9.0)
    assert way.rate == 2 * MB


def test_a_few_bytes_measure_delays_and_do_not_count():
    way = OneWay()
    way.begin((1, "round.part"), 0.0)
    way.end((1, "round.part"), LEAST_BYTES - 1, 0.3)
    assert way.rate == 0


def test_the_fastest_of_the_last_bursts_counts_and_is_forgotten_in_time():
    way = OneWay()
    for number, took in enumerate([0.5] + KEPT * [2.0]):
        way.begin((number, "round.part"), 0.0)
        way.end((number, "round.part"), MB, took)
        assert way.rate == (2 * MB if number < KEPT else MB // 2)
    way.end((0, "round.part"), MB, 0.1)  # of a burst long over
    assert way.rate == MB // 2


def test_what_the_owner_declares_stands_in_place_of_what_is_measured():
    meter = LineMeter(declared=2.5e6)
    assert meter.line == Bandwidth(2_500_000, 0)
    assert LineMeter().line == Bandwidth()
