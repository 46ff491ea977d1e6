"""``python -m tests.soak``: a swarm of one block, in a third of whose rounds one volunteer has a fault.

Real processes on loopback, a small model, short rounds; the faults are cells of the matrix (``tests/faults``) drawn at
random, and ``--matrix`` runs every cell once before the rounds. 1000 rounds take about an hour and a half on two cores.
At the end it says what broke a promise, exits with 1 if anything did, and writes the figures to ``--report`` as JSON,
and for people beside it as Markdown.
"""

from __future__ import annotations

import asyncio
import json
import platform
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from blockswarm.files import write_atomically
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import LocalError, Node
from blockswarm.swarm.policy.leader import leader_order
from tests.faults import __main__ as faults
from tests.faults.alterations import ALTERATIONS
from tests.faults.injection import SIGNALS, Fault
from tests.faults.table import CELLS, name_of
from tests.integration.small import FAULTY, PATIENCE, next_round, peer_id, round_times, small_swarm, wait_together
from tests.soak.judge import SETTLED_ROUNDS, Round, failures, figures, judge
from tests.soak.record import markdown

LEAST_PRESENT = 4
"""Volunteers that take part where one has a fault: of fewer, it is no minority."""

SPARED = 3
"""Volunteers that are never killed or stopped: their memory is watched from the first round to the last."""

LONGEST_STOP = 4
"""Rounds a stopped volunteer sleeps at most."""

DRAWS = 50
"""Cells drawn until there is one whose culprit may have it in this round."""

AFTER_CLOSE = 1.2
"""Seconds after a round's close in which its reports come."""


@dataclass
class Soak:
    """The swarm and what is being done to it."""

    swarm: LocalSwarm
    rng: random.Random
    lives: dict[str, list[Node]] = field(default_factory=dict)
    """Name → its processes, the present one last."""
    asleep: dict[str, int] = field(default_factory=dict)
    """Name of a stopped volunteer → round after which it is continued."""
    away_since: dict[str, int] = field(default_factory=dict)
    """Name of a volunteer that was killed or stopped, and is not back → round in which that happened."""
    rounds: list[Round] = field(default_factory=list)
    memory: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def start(self, count: int) -> None:
        """Start volunteers and wait until they have committed together."""
        for _ in range(count):
            node = self.swarm.start_volunteer(0, program=FAULTY)
            self.lives[node.name] = [node]
        wait_together(self.present())

    def present(self) -> list[Node]:
        """The living process of every volunteer."""
        return [lives[-1] for lives in self.lives.values()]

    def one_round(self, fault_share: float) -> None:
        """Let one round pass, and perhaps give one volunteer a fault in it."""
        number = next_round(self.swarm)
        fault, ends = self._arm(number) if self.rng.random() < fault_share else (None, [])
        close = round_times(self.swarm, number).close
        time.sleep(max(0.0, close + AFTER_CLOSE - time.time()))
        for node in self.present():
            node.poll()
        if fault is not None and fault.kind in SIGNALS:
            self._note_struck(ends[0], number)
        self.rounds.append(self._round(number, close, fault, ends))
        self._bring_back(number)
        self._measure(number)

    def _round(self, number: int, close: float, fault: Fault | None, ends: list[str]) -> Round:
        away = frozenset(self.away_since)
        if fault is None:
            return Round(number, close, "", frozenset(), away)
        cut = fault.kind == "cut link"
        # A quorum is enough for a certificate: what a member says at the very end, or again, may come after the report.
        told = (
            fault.kind in ALTERATIONS and fault.kind != "replay" and (fault.phase, fault.role) != ("commit", "member")
        )
        culprits = frozenset(peer_id(self.lives[name][-1]) for name in ends[: 2 if cut else 1])
        return Round(
            number,
            close,
            f"{fault.kind} {fault.phase} {fault.role}",
            frozenset(ends[: 2 if cut else 1]),
            away,
            named=culprits if told and CELLS[fault].named else frozenset(),
            may_fork=CELLS[fault].may_fork,
        )

    def _arm(self, number: int) -> tuple[Fault | None, list[str]]:
        """Draw a cell that one of those present may have in this round, and tell it; the cell, culprit and next one."""
        names = {peer_id(lives[-1]): name for name, lives in self.lives.items() if name not in self.away_since}
        order = leader_order(names, run_digest=self.swarm.manifest.digest, subject=0, round_number=number)
        if len(order) < LEAST_PRESENT:
            return None, []
        spared = set(list(self.lives)[:SPARED])
        for _ in range(DRAWS):
            fault = self.rng.choice(list(CELLS))
            place = 0 if fault.role == "leader" else self.rng.randrange(2, len(order))
            if fault.kind in SIGNALS and names[order[place]] in spared:
                continue
            ends = [order[place], order[(place + 1) % len(order)]]
            words: dict[str, Any] = {"round": number, "cell": name_of(fault), "peer": ends[0], "beyond": ends[1]}
            if fault.kind in SIGNALS and fault.phase != "meet" and self.rng.random() < 0.5:
                # Not as the phase begins, but when one of the others has taken its message and the next one has not.
                words = {"round": number, "fault": SIGNALS[fault.kind], "at": fault.method, "peer": ends[0]}
            write_atomically(self.swarm.folder / "fault.json", json.dumps(words).encode())
            return fault, [names[end] for end in ends]
        return None, []

    def _note_struck(self, victim: str, number: int) -> None:
        node = self.lives[victim][-1]
        if not node.running:
            self.away_since[victim] = number
            self.lives[victim].append(self.swarm.start_volunteer(0, name=victim, program=FAULTY))
        elif psutil.Process(node.process.pid).status() == psutil.STATUS_STOPPED:
            self.away_since[victim] = number
            self.asleep[victim] = number + self.rng.randint(0, LONGEST_STOP)

    def _bring_back(self, number: int) -> None:
        for name in [name for name, until in self.asleep.items() if until <= number]:
            self.lives[name][-1].kill(signal.SIGCONT, family=True)
            del self.asleep[name]
            self.away_since[name] = number
        for name, since in list(self.away_since.items()):
            if name in self.asleep:
                continue
            # Back is who has committed with others a round that began after it came back.
            reports = [event for event in self.lives[name][-1].events if event["event"] == "round"]
            if any(event["round"] > since + 1 and event["committed"] and not event["lone"] for event in reports):
                del self.away_since[name]

    def _measure(self, number: int) -> None:
        for name in list(self.lives)[:SPARED]:
            node = self.lives[name][-1]
            processes = [psutil.Process(node.process.pid), *node.family()]
            size = float(sum(process.memory_info().rss for process in processes))
            self.memory.setdefault(name, []).append((number, size))

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """Everything each volunteer reported, of all its lives."""
        return {name: [dict(event) for node in lives for event in node.events] for name, lives in self.lives.items()}


def left_over(swarm: LocalSwarm, before: set[str]) -> list[str]:
    """Processes that still run, and files in the folder for temporary ones that volunteers who left made there."""
    found = [f"process {process.pid}" for process in swarm.leftover_processes(patience=5.0)]
    return found + sorted(name for name in _temporary() - before if name.startswith("blockswarm"))


def _temporary() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).iterdir()}


def soak(
    rounds: int, replicas: int, fault_share: float, seed: int, folder: Path, *, slower: float = 1.0
) -> dict[str, Any]:
    """Run it; the report."""
    before = _temporary()
    began = time.time()
    swarm = small_swarm(folder, starts_in=2, slower=slower)
    run = Soak(swarm, random.Random(seed))
    stopped_short = ""
    try:
        run.start(replicas)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("rounds", total=rounds)
            for _ in range(rounds):
                run.one_round(fault_share)
                progress.advance(task)
    except KeyboardInterrupt:
        stopped_short = "interrupted"
    except LocalError as error:
        stopped_short = str(error)
    finally:
        for node in run.present():
            node.kill(signal.SIGCONT, family=True)
        stubborn = swarm.stop_all(timeout=PATIENCE)
    over = [f"{name} did not leave" for name in stubborn] + left_over(swarm, before)
    swarm.close()
    settings = {"rounds": rounds, "replicas": replicas, "fault_share": fault_share, "seed": seed}
    timing = swarm.manifest.rounds
    return {
        "settings": {**settings, "round_seconds": timing.seconds, "phases": asdict(timing.lengths)},
        "machine": {"cpus": psutil.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "seconds": round(time.time() - began, 1),
        "stopped_short": stopped_short,
        **figures(judge(run.rounds, run.events()), run.memory, over),
    }


@click.command()
@click.option("--rounds", default=1000, show_default=True, type=click.IntRange(1))
@click.option("--replicas", default=8, show_default=True, type=click.IntRange(SPARED + 1))
@click.option("--fault-share", default=1 / 3, show_default="1/3", type=click.FloatRange(0, 1))
@click.option("--seed", default=0, show_default=True, type=int)
@click.option(
    "--slower", default=1.0, show_default=True, type=click.FloatRange(0.2), help="Length of rounds, times 5 s."
)
@click.option("--matrix", is_flag=True, help="Run every cell of the fault matrix once first (some five minutes).")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the figures (JSON; .md beside it)."
)
def main(
    rounds: int, replicas: int, fault_share: float, seed: int, slower: float, matrix: bool, report: Path | None
) -> None:
    """Run a swarm for long under faults, and judge what it did."""
    cells = faults.figures(asyncio.run(faults.run_cells(list(faults.BY_NAME)))) if matrix else None
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(rounds, replicas, fault_share, seed, Path(folder), slower=slower)
    if cells is not None:
        found["matrix"] = cells
    if report is not None:
        write_atomically(report, (json.dumps(found, indent=1) + "\n").encode())
        write_atomically(report.with_suffix(".md"), markdown(found).encode())
    click.echo(json.dumps(found))
    problems = [*failures(found), *(faults.failures(cells) if cells is not None else [])] + (
        [f"it ended early: {found['stopped_short']}"] if found["stopped_short"] else []
    )
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    if rounds <= SETTLED_ROUNDS:
        click.echo(f"memory was not judged: that takes more than {SETTLED_ROUNDS} rounds", err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
