"""``python -m tests.faults``: the whole matrix, or some of its cells, on one swarm; exits with 1 if one is not kept."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from blockswarm.files import write_atomically
from tests.faults.cell import Outcome, run_cell
from tests.faults.swarm import COUNT, running_swarm
from tests.faults.table import CELLS, SUITE, TABLE, name_of
from tests.pace import slowness

BY_NAME = {name_of(fault): fault for fault in CELLS}
SLOWEST = 4.0
"""Phases are at most this many times longer than on an idle machine."""

LEAST_CALM, LEAST_FAULTY = 0.95, 0.8
"""Shares of rounds without a fault, and with a minority at fault, that must commit."""


def pace() -> float:
    """How many times longer phases should be here than on an idle machine."""
    return min(SLOWEST, max(1.0, slowness() / 2.0))


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the cells showed together, ready for JSON."""
    calm = [committed for outcome in outcomes for committed in outcome.calm]
    faulty = [outcome.committed for outcome in outcomes]
    return {
        "replicas": COUNT,
        "cells": len(outcomes),
        "commit_rate": {"calm": sum(calm) / len(calm), "fault": sum(faulty) / len(faulty)},
        "rounds": {"calm": len(calm), "fault": len(faulty)},
        "latest_after_close": round(max(outcome.latest for outcome in outcomes), 3),
        "broken": {outcome.name: outcome.broken for outcome in outcomes if outcome.broken},
    }


def failures(report: dict[str, Any]) -> list[str]:
    """What breaks a promise; empty for a matrix that passed."""
    told = [f"{name}: {'; '.join(broken)}" for name, broken in report["broken"].items()]
    for kind, least in (("calm", LEAST_CALM), ("fault", LEAST_FAULTY)):
        if report["commit_rate"][kind] < least:
            told.append(f"{report['commit_rate'][kind]:.3f} of the {kind} rounds committed, not {least}")
    return told


async def run_cells(names: Sequence[str]) -> list[Outcome]:
    """Run cells one after the other on one swarm, and say how each went."""
    outcomes = []
    async with running_swarm(pace()) as swarm:
        for name in names:
            began = time.monotonic()
            outcomes.append(outcome := await run_cell(swarm, BY_NAME[name]))
            told = "; ".join(outcome.broken) or "kept"
            click.echo(f"{name:32} {time.monotonic() - began:5.1f} s  {told}", err=True)
    return outcomes


@click.command()
@click.option("--cell", "cells", multiple=True, type=click.Choice(sorted(BY_NAME)), help="Only this one; repeatable.")
@click.option("--suite", is_flag=True, help="Only those that the test suite runs.")
@click.option("--list", "listing", is_flag=True, help="Name all cells, and say why the others mean nothing.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the figures (JSON).")
def main(cells: tuple[str, ...], suite: bool, listing: bool, report: Path | None) -> None:
    """Every fault in every phase of a round, by a member and by the leader."""
    if listing:
        for fault, entry in TABLE.items():
            click.echo(f"{name_of(fault):32} {entry if isinstance(entry, str) else entry.named or 'costs nothing'}")
        return
    outcomes = asyncio.run(run_cells(cells or (SUITE if suite else list(BY_NAME))))
    found = figures(outcomes)
    if report is not None:
        every = {"cell": [asdict(outcome) | {"said": sorted(set(outcome.said))} for outcome in outcomes]}
        write_atomically(report, (json.dumps(found | every, indent=1) + "\n").encode())
    click.echo(json.dumps(found))
    problems = failures(found)
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
