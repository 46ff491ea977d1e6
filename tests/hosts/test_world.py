"""Real packets between real namespaces: delays, rates, losses and cuts are those asked for."""

from __future__ import annotations

import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hosts import FREE, HostsError, Link, World
from benchmarks.hosts.flows import Echo, Stream, count_datagrams

Build = Callable[..., World]

LATE_MS = 8.0
"""By how much a busy machine may be late in both directions together; far less than the delays asked for."""


def typical(times: list[float]) -> float:
    """The lower quartile, ms: on a busy machine it may be we who take long to look at the answer."""
    return statistics.quantiles(times, n=4)[0]


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("delay", [0.0, 40.0])
def test_a_round_trip_takes_both_delays(build: Build, delay: float) -> None:
    world = build(2, link=Link(delay_ms=delay))
    with Echo(world[0], world[1]) as echo:
        times = echo.round_trips(40)
    assert len(times) == 40
    assert min(times) >= 2 * delay
    assert typical(times) <= 2 * delay + LATE_MS


@pytest.mark.usefixtures("undisturbed")
def test_ipv6_takes_the_same_way(build: Build) -> None:
    world = build(2, link=Link(delay_ms=20))
    if world[0].address6 is None:
        pytest.skip("this kernel does no IPv6")
    with Echo(world[0], world[1], ipv6=True) as echo:
        assert 40 <= typical(echo.round_trips(20)) <= 40 + LATE_MS


@pytest.mark.usefixtures("undisturbed")
def test_the_two_directions_may_differ(build: Build) -> None:
    world = build(2)
    world.set_link(0, 1, Link(delay_ms=5, rate_mbit=2), back=Link(delay_ms=30))
    assert world.link(1, 0) == Link(delay_ms=30)
    with Echo(world[0], world[1]) as echo:
        assert 35 <= typical(echo.round_trips(20)) <= 35 + LATE_MS
    with Stream(world[1], world[0]) as fast:
        assert fast.rate(0.5) > 20


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("rate", [5.0, 40.0])
def test_a_stream_gets_the_rate_of_the_line(build: Build, rate: float) -> None:
    # Reno keeps the queue filled; other kinds of congestion control leave some of the line unused.
    world = build(2, link=Link(delay_ms=5, rate_mbit=rate), congestion="reno")
    with Stream(world[0], world[1]) as stream:
        time.sleep(0.7)  # slow start
        before, begin = world.traffic()[0, 1].delivered_bytes, time.monotonic()
        payload = stream.rate(2.0)
        carried = 8e-6 * (world.traffic()[0, 1].delivered_bytes - before) / (time.monotonic() - begin)
    assert carried == pytest.approx(rate, rel=0.05)
    assert payload == pytest.approx(rate * 1448 / 1500, rel=0.07)


@pytest.mark.usefixtures("undisturbed")
def test_an_uplink_is_shared_by_streams_to_several_hosts(build: Build) -> None:
    world = build(3, uplink=Link(rate_mbit=10), congestion="reno")
    with Stream(world[0], world[1]), Stream(world[0], world[2]):
        time.sleep(0.7)
        before, begin = world.sent_by(0).delivered_bytes, time.monotonic()
        time.sleep(1.5)
        carried = 8e-6 * (world.sent_by(0).delivered_bytes - before) / (time.monotonic() - begin)
    assert carried == pytest.approx(10, rel=0.06)
    world.set_uplink(world[0], FREE)
    with Stream(world[0], world[1]) as stream:
        assert stream.rate(0.5) > 20


def test_losses_are_those_asked_for_and_the_same_for_the_same_seed(build: Build) -> None:
    def survivors(seed: int) -> list[int]:
        world = build(2, link=Link(loss=0.1), seed=seed)
        arrived = count_datagrams(world[0], world[1], 2000)
        counts = world.traffic()[0, 1]
        assert (counts.sent, counts.delivered, counts.lost) == (2000, len(arrived), 2000 - len(arrived))
        return arrived

    first = survivors(seed=7)
    assert 1740 <= len(first) <= 1860  # 4.5 standard deviations around 1800
    assert survivors(seed=7) == first != survivors(seed=8)


def test_a_queue_that_is_full_drops(build: Build) -> None:
    world = build(2, link=Link(rate_mbit=1, queue_bytes=5000))
    arrived = count_datagrams(world[0], world[1], 30, size=972)  # 1000 bytes with their headers
    assert len(arrived) < 25
    assert arrived[:5] == [0, 1, 2, 3, 4]
    counts = world.traffic()[0, 1]
    assert counts.overflowed == 30 - len(arrived)


def test_a_cut_is_silent_until_it_is_healed(build: Build) -> None:
    world = build(3)
    with Echo(world[0], world[1]) as near, Echo(world[0], world[2]) as far:
        world.cut(0, 1)
        assert near.round_trip(patience=0.2) is None
        assert far.round_trip() is not None
        world.heal(0, 1)
        assert near.round_trip() is not None
        world.cut(1, 0, one_way=True)
        assert near.round_trip(patience=0.2) is None  # asked, but the answer is dropped
        assert world.traffic()[0, 1].cut == world.traffic()[1, 0].cut == 1
        world.heal()
        assert near.round_trip() is not None
        world.cut_off(world[0])
        assert near.round_trip(patience=0.2) is None
        assert far.round_trip(patience=0.2) is None
        world.heal(0)
        assert near.round_trip() is not None
        assert far.round_trip() is not None


def test_a_host_sees_itself_and_its_likes_and_nothing_else(build: Build) -> None:
    world = build(2)

    def connect(address: str) -> type[BaseException] | None:
        with world[0].socket() as probe:
            probe.settimeout(0.3)
            try:
                probe.connect((address, 9))
            except OSError as error:
                return type(error)
        return None

    assert connect("127.0.0.1") is ConnectionRefusedError
    assert connect(world[1].address) is ConnectionRefusedError
    assert connect("10.77.9.9") is TimeoutError  # nobody there: silence
    assert connect("198.51.100.1") is OSError  # no route
    assert world.strays() > 0


def test_asking_for_lateness_does_not_count_every_pair(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder carries nothing while it answers, and all pairs of 64 hosts are a long answer."""
    world = build(3)
    with Echo(world[0], world[1]) as echo:
        assert echo.round_trip() is not None
    answers = []
    order = world._channel.order

    def noted(words: dict[str, object]) -> dict[str, object]:
        answers.append(order(words))
        return answers[-1]

    monkeypatch.setattr(world._channel, "order", noted)
    assert world.lateness().packets >= 2
    assert world.strays() >= 0
    assert [sorted(answer) for answer in answers] == [["lateness", "strays"]] * 2
    assert world.traffic()[0, 1].delivered >= 1
    assert sorted(answers[-1]) == ["traffic"]


def test_two_worlds_may_have_the_same_addresses(build: Build) -> None:
    first, second = build(2), build(2)
    assert first[1].address == second[1].address
    with Echo(first[0], first[1]) as one, Echo(second[0], second[1]) as other:
        first.cut(0, 1)
        assert one.round_trip(patience=0.2) is None
        assert other.round_trip() is not None


def test_addresses_may_look_public(build: Build) -> None:
    world = build(2, network="45.0.0.0/24", network6="2a00:77::/64")
    assert world[1].address == "45.0.0.2"
    with Echo(world[0], world[1]) as echo:
        assert echo.round_trip() is not None


def test_programs_run_on_a_host(build: Build) -> None:
    world = build(2, congestion="reno")
    done = world[1].run(["cat", "/proc/net/dev", "/proc/sys/net/ipv4/tcp_congestion_control"], timeout=10)
    assert "net0" in done.stdout
    assert done.stdout.endswith("reno\n")
    with pytest.raises(subprocess.CalledProcessError):
        world[1].run(["false"], timeout=10)
    with pytest.raises(subprocess.TimeoutExpired):
        world[1].run(["sleep", "60"], timeout=0.3)
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        world[1].popen(["no-such-program"])
    with pytest.raises(TypeError, match="shell"):
        world[1].popen(["true"], shell=True)


def test_a_program_named_by_its_place_must_be_there(build: Build, tmp_path: Path) -> None:
    host = build(1)[0]
    (tmp_path / "greet").write_text("#!/bin/sh\necho hello\n")
    for program, cwd in (
        (tmp_path / "missing", None),
        ("./missing", tmp_path),
        (tmp_path / "greet", None),
        ("/", None),
    ):
        with pytest.raises(FileNotFoundError, match="no program"):
            host.popen([program], cwd=cwd)
    (tmp_path / "greet").chmod(0o755)
    for program, cwd in ((tmp_path / "greet", None), ("./greet", tmp_path)):
        assert host.run([program], timeout=10, cwd=cwd).stdout == "hello\n"
    with pytest.raises(FileNotFoundError, match="no program"):
        host.popen(["./greet"])


def test_sockets_of_this_process_can_be_on_a_host(build: Build) -> None:
    world = build(2)
    with world[0].socket(socket.SOCK_DGRAM) as there:
        there.bind((world[0].address, 4000))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, pytest.raises(OSError, match="assign"):
            here.bind((world[0].address, 4000))  # this machine knows no such address


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hosts": 0}, "1 to 64 hosts"),
        ({"hosts": 65}, "1 to 64 hosts"),
        ({"mtu": 100}, "mtu is 100"),
        ({"link": Link(rate_mbit=1, queue_bytes=1000)}, "less than one packet"),
        ({"network": "10.0.0.0/31"}, "too small"),
        ({"network": "nonsense"}, "not a network"),
        ({"congestion": "nonsense"}, "congestion control 'nonsense'.*this kernel has:.*reno"),
    ],
)
def test_a_world_that_cannot_be_is_refused(build: Build, options: dict[str, object], said: str) -> None:
    with pytest.raises(HostsError, match=said):
        build(**options)


def test_wrong_hosts_are_refused(build: Build) -> None:
    world = build(2)
    with pytest.raises(HostsError, match="no host 2"):
        world.cut(0, 2)
    with pytest.raises(HostsError, match="no line to itself"):
        world.set_link(1, 1, FREE)
    with pytest.raises(HostsError, match="less than one packet"):
        world.set_uplink(1, Link(rate_mbit=1, queue_bytes=100))
