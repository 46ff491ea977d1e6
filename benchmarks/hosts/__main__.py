"""Several hosts on one machine, from the command line.

    python -m benchmarks.hosts exec --hosts 2 --delay-ms 40 --rate-mbit 20 -- ping -c 3 '$HOST_1'
    python -m benchmarks.hosts run scenario.toml
    python -m benchmarks.hosts measure

``exec`` runs one command on a host, ``run`` a scenario file (`benchmarks/hosts/scenario.py` shows one); both tell on
standard error what happened. ``measure`` says how true the bench itself is on this machine. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts.errors import HostsError
from benchmarks.hosts.link import Link
from benchmarks.hosts.measure import measure, table
from benchmarks.hosts.scenario import Scenario, play
from benchmarks.hosts.world import MTU


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.hosts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)

    execute = commands.add_parser("exec", help="run a command on one of several hosts")
    execute.add_argument("--hosts", type=int, default=2, help="how many (default 2)")
    execute.add_argument("--host", type=int, default=0, help="the one that runs the command (default 0)")
    execute.add_argument("--delay-ms", type=float, default=0.0, help="travel time one way between any two hosts")
    execute.add_argument("--rate-mbit", type=float, help="rate of each line, each way (default: no limit)")
    execute.add_argument("--queue-bytes", type=int, help="queue before each line (default 0.1 s of its rate)")
    execute.add_argument("--loss", type=float, default=0.0, help="share of packets lost")
    execute.add_argument("--seed", type=int, default=0, help="of the losses")
    execute.add_argument("--mtu", type=int, default=MTU, help=f"largest packet (default {MTU})")
    execute.add_argument("--congestion", help="TCP congestion control on the hosts (default: this machine's)")
    execute.add_argument("--seconds", type=float, help="end the command after this time")
    execute.add_argument("words", nargs="+", metavar="COMMAND", help="after --; $HOST_1 is the address of host 1")

    scenario = commands.add_parser("run", help="run a scenario file")
    scenario.add_argument("file", type=Path)

    own = commands.add_parser("measure", help="measure the bench itself; takes about two minutes")
    own.add_argument("--seconds", type=float, default=3.0, help="for each stream (default 3)")
    for each in (execute, scenario, own):
        each.add_argument("--json", action="store_true", help="print one JSON object last")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code is that of the command, or 1 if anything failed."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "measure":
            if not 0 < options.seconds < math.inf:
                raise HostsError(f"seconds is {options.seconds:g}: a stream must be measured for some time")
            result = measure(options.seconds)
            print(json.dumps(result) if options.json else table(result))
            return 0
        story = Scenario.load(options.file) if options.command == "run" else _single(options)
        result = play(story, lambda line: print(line, file=sys.stderr, flush=True))
    except HostsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if options.json else _summary(result), file=sys.stdout if options.json else sys.stderr)
    codes = [process["code"] for process in result["processes"] if process["code"]]
    return 0 if not codes else codes[0] if options.command == "exec" and codes[0] > 0 else 1


def _single(options: argparse.Namespace) -> Scenario:
    link = Link(
        delay_ms=options.delay_ms, rate_mbit=options.rate_mbit, queue_bytes=options.queue_bytes, loss=options.loss
    )
    if not 0 <= options.host < options.hosts:
        raise HostsError(f"there is no host {options.host}: hosts are numbered from 0 to {options.hosts - 1}")
    return Scenario.of(
        {
            "hosts": options.hosts,
            "seconds": options.seconds,
            "seed": options.seed,
            "mtu": options.mtu,
            "congestion": options.congestion,
            "link": link,
            "run": [{"host": options.host, "command": options.words}],
        }
    )


def _summary(result: dict[str, Any]) -> str:
    lines = ["", "from  to       sent      bytes  delivered   lost  overflowed   cut"]
    lines += [
        f"{row['from']:4}  {row['to']:2} {row['sent']:10} {row['sent_bytes']:10} {row['delivered']:10} "
        f"{row['lost']:6} {row['overflowed']:11} {row['cut']:5}"
        for row in result["traffic"]
        if row["sent"]
    ]
    lateness = result["lateness"]
    lost = lateness["overrun"] + lateness["overfull"]
    lines.append(
        f"{lateness['late']} of {lateness['packets']} packets more than 1 ms late, "
        f"the worst {lateness['worst_ms']:.1f} ms; {lost} lost by the bench itself"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
