"""What the bench itself is worth on this machine: how true its delays and rates are, what it can carry, what it costs.

python -m benchmarks.hosts measure --json
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from typing import Any

import psutil

from benchmarks.hosts.flows import Echo, Stream, undisturbed
from benchmarks.hosts.link import FREE, Link
from benchmarks.hosts.world import World

DELAYS_MS = (0.0, 5.0, 40.0, 150.0)
RATES_MBIT = (1.0, 5.0, 20.0, 100.0)
MTUS = (1500, 9000, 65_535)
ECHOES = 200
LOADS_MBIT = (60.0, 200.0, None)
"""In all; None: as much as goes."""


def measure_delays() -> list[dict[str, Any]]:
    """Round trips of a datagram over lines of several delays."""
    rows = []
    for delay in DELAYS_MS:
        with World.build(2, link=Link(delay_ms=delay)) as world, Echo(world[0], world[1]) as echo:
            times = echo.round_trips(ECHOES)
            errors = sorted(each - 2 * delay for each in times)
            rows.append(
                {
                    "delay_ms": delay,
                    "rtt_ms": round(statistics.median(times), 3),
                    "error_p50_ms": round(statistics.median(errors), 3),
                    "error_p99_ms": round(errors[int(0.99 * len(errors))], 3),
                    "late": world.lateness().late,
                }
            )
    return rows


def measure_rates(seconds: float) -> list[dict[str, Any]]:
    """One TCP stream over lines of several rates, 10 ms each way; a rate is that of IP packets, headers included."""
    rows = []
    for rate in RATES_MBIT:
        link = Link(delay_ms=10, rate_mbit=rate)
        with World.build(2, link=link) as world, Stream(world[0], world[1]) as stream:
            time.sleep(1.0)  # the connection's slow start
            before, begin = world.traffic()[0, 1], time.perf_counter()
            payload = stream.rate(seconds)
            after, end = world.traffic()[0, 1], time.perf_counter()
            measured = 8e-6 * (after.delivered_bytes - before.delivered_bytes) / (end - begin)
            rows.append(
                {
                    "rate_mbit": rate,
                    "measured_mbit": round(measured, 3),
                    "payload_mbit": round(payload, 3),
                    "error": round(measured / rate - 1, 4),
                }
            )
    return rows


def measure_load(mtu: int, seconds: float, *, hosts: int, rate: float | None) -> dict[str, Any]:
    """A TCP stream from every host to the next in a ring, at ``rate`` Mbit/s in all (None: what goes)."""
    link = FREE if rate is None else Link(delay_ms=10, rate_mbit=rate / hosts)
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(World.build(hosts, link=link, mtu=mtu))
        ring = [(world[number], world[(number + 1) % hosts]) for number in range(hosts)]
        for source, target in ring:
            stack.enter_context(Stream(source, target))
        time.sleep(1.0)
        began = _reading(world)
        time.sleep(seconds)
        elapsed, cpu, packets, carried = (b - a for a, b in zip(began, _reading(world), strict=True))
        lateness = world.lateness()
        return {
            "mtu": mtu,
            "streams": hosts,
            "asked_mbit": rate,
            "mbit": round(8e-6 * carried / elapsed, 1),
            "packets_per_s": round(packets / elapsed),
            "cpu_share": round(cpu / elapsed, 3),
            "cpu_us_per_packet": round(1e6 * cpu / packets, 2),
            "late_share": round(lateness.late / max(1, lateness.packets), 4),
            "overrun": lateness.overrun,
        }


def _reading(world: World) -> tuple[float, float, float, float]:
    """Now (s), the forwarder's processor seconds, packets and bytes delivered."""
    times = world.forwarder.cpu_times()
    traffic = list(world.traffic().values())
    delivered = sum(each.delivered for each in traffic), sum(each.delivered_bytes for each in traffic)
    return time.perf_counter(), times.user + times.system, *delivered


def measure(seconds: float) -> dict[str, Any]:
    """Everything; ``seconds`` for each stream."""
    busy = round(psutil.getloadavg()[0], 2)
    with undisturbed():
        return {
            "cores": psutil.cpu_count(),
            "busy": busy,
            "delays": measure_delays(),
            "rates": measure_rates(seconds),
            "loads": [
                measure_load(mtu, seconds, hosts=hosts, rate=rate)
                for rate, mtu, hosts in itertools.product(LOADS_MBIT, MTUS, (2, 4))
            ],
        }


def table(result: dict[str, Any]) -> str:
    """The same as text."""
    lines = [f"{result['cores']} cores, load average {result['busy']}", ""]
    for name in ("delays", "rates", "loads"):
        rows = result[name]
        columns = list(rows[0])
        cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        lines.append("")
    return "\n".join(lines).rstrip()


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
