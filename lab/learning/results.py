"""Figures of simulated trainings: rows by regime, policy and seed; a table, JSON, CSV and Markdown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockswarm.lab.errors import LabError, LabUsageError
from blockswarm.lab.writing import csv_text, write_file
from blockswarm.naming import option

FORMAT = "blockswarm-simulated-learning-1"
STEM = "learning"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One regime and policy for one seed."""

    regime: str
    policy: str
    seed: int
    final_ce: float
    """Parallel readout over held-out bytes, nats per byte."""
    sweep_ce: float
    """The paper's readout, the Euler sweep, over the same bytes."""
    participation: float
    """Accepted updates ÷ updates trained."""
    reachable: float
    """Share of the updates that would have been in time after a single step: no policy's participation is steadily
    higher, but by sending what it has trained before the round."""
    of_reachable: float
    """Share of those that were accepted; 1 where there were none."""
    wall_s: float
    """Simulated."""
    rounds: int
    steps: int
    """Local steps of all workers."""
    gigabytes: float
    """Simulated bytes of updates sent, 10^9."""
    seconds: float
    """What the simulation took here."""
    curve: tuple[tuple[float, float], ...]
    """Simulated seconds and cross-entropy of the first held-out bytes then."""


@dataclass(frozen=True)
class Figures:
    """All rows and the frame they were made in."""

    settings: dict[str, Any]
    rows: tuple[Row, ...]
    published: dict[str, dict[str, Any]]
    """What the paper's tables say, by regime."""

    def summary(self) -> list[dict[str, Any]]:
        """One row for each regime and policy: means over seeds."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.regime, row.policy), []).append(row)
        return [_mean(group) for group in groups.values()]


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    def mean(name: str) -> float:
        return round(statistics.fmean(getattr(row, name) for row in rows), 5)

    ce = [row.final_ce for row in rows]
    return {
        "regime": rows[0].regime,
        "policy": rows[0].policy,
        "final_ce": mean("final_ce"),
        "final_ce_std": round(statistics.stdev(ce), 5) if len(ce) > 1 else 0.0,
        "ppl": round(math.exp(mean("final_ce")), 4),
        "sweep_ce": mean("sweep_ce"),
        "participation": mean("participation"),
        "reachable": mean("reachable"),
        "of_reachable": mean("of_reachable"),
        "wall_s": mean("wall_s"),
        "rounds": mean("rounds"),
        "steps": mean("steps"),
        "gigabytes": mean("gigabytes"),
        "seeds": [row.seed for row in rows],
        "curve": [
            (statistics.fmean(time for time, _ in points), statistics.fmean(value for _, value in points))
            for points in zip(*(row.curve for row in rows), strict=False)
        ],
    }


def table(figures: Figures) -> str:
    """The rows as a Markdown table, the paper's figures beside those it has."""
    lines = [
        "| regime | policy | CE | PPL | participation | fits | of these | wall s | steps | GB | sweep CE "
        "| paper: CE, p, wall |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    told: set[str] = set()
    for row in figures.summary():
        regime = row["regime"]
        paper = figures.published.get(regime) if regime not in told else None
        told.add(regime)
        theirs = (
            f"{paper['table']}: {paper['ce']:.3f}, {paper['participation']:.2f}, {paper['wall_s']:g}" if paper else ""
        )
        spread = f" ± {row['final_ce_std']:.3f}" if len(row["seeds"]) > 1 else ""
        lines.append(
            f"| {regime} | {row['policy']} | {row['final_ce']:.3f}{spread} | {row['ppl']:.2f} "
            f"| {row['participation']:.2f} | {row['reachable']:.2f} | {row['of_reachable']:.2f} | {row['wall_s']:.1f} "
            f"| {row['steps']:,.0f} | {row['gigabytes']:.2f} | {row['sweep_ce']:.3f} | {theirs} |"
        )
    return "\n".join(lines)


def save(folder: Path, figures: Figures) -> None:
    """Write ``learning.json`` and ``learning.csv``.

    Raises
    ------
    LabError
        If they cannot be written.
    """
    content = {
        "format": FORMAT,
        "simulated": True,
        "settings": figures.settings,
        "published": figures.published,
        "rows": [asdict(row) for row in figures.rows],
    }
    write_file(folder / f"{STEM}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    columns = [name for name in Row.__dataclass_fields__ if name != "curve"]
    write_file(folder / f"{STEM}.csv", csv_text(figures.rows, columns))


def load(folder: Path) -> Figures | None:
    """What ``save`` wrote, or None.

    Raises
    ------
    LabError
        If the file cannot be read, is something else's, or is damaged.
    """
    path = folder / f"{STEM}.json"
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError("not figures of this version")
        return Figures(dict(content["settings"]), tuple(map(row_from, content["rows"])), dict(content["published"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LabUsageError(
            f"{path}: damaged, or something else's ({error}); remove it or give another {option('output')}"
        ) from error


def row_from(mapping: dict[str, Any]) -> Row:
    """A row from plain data; raises ``TypeError`` or ``ValueError`` where it is not one."""
    curve = tuple((float(time), float(value)) for time, value in mapping["curve"])
    row = Row(**{**mapping, "curve": curve})
    if not all(math.isfinite(value) for value in (row.final_ce, row.sweep_ce, row.participation, row.wall_s)):
        raise ValueError("a figure is not finite")
    return row
