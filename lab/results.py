"""An experiment's figures: filled row by row, summed up over seeds, written as JSON, CSV, Markdown and PNG."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockswarm.lab.errors import LabError, LabUsageError
from blockswarm.lab.writing import csv_text, write_file
from blockswarm.naming import option

FORMAT = "blockswarm-experiment-2"
REFERENCE = "end_to_end_full"
"""The row every other one is compared with."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One readout for one seed."""

    label: str
    group: str
    seed: int
    nats_per_byte: float
    bits_per_byte: float
    ci95: float | None
    """Half width of the 95 % interval over the text, nats per byte."""
    bytes: int
    tokens: int
    """Bytes each of its models or blocks was trained on."""
    seconds: float
    """Wall seconds of training, all of its models and blocks one after another."""
    bytes_sent: int
    x: float | None = None
    facts: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All rows of an experiment and the frame they were made in."""

    experiment: str
    settings: dict[str, Any]
    """Whatever changes a figure: size, steps, seeds, data and the part of it that is measured, recipes."""
    rows: list[Row]
    curves: dict[str, list[tuple[int, float]]]
    """Label to (steps, cross-entropy) where a training was watched, first seed."""
    machine: dict[str, Any]
    also: list[dict[str, Any]] = field(default_factory=list)
    """Rows of a further table."""

    @property
    def part(self) -> str:
        """The part of the text that was measured: ``valid`` or ``test``."""
        return str(self.settings["part"])

    def by_seed(self) -> dict[str, dict[int, float]]:
        """Label to seed to nats per byte."""
        found: dict[str, dict[int, float]] = {}
        for row in self.rows:
            found.setdefault(row.label, {})[row.seed] = row.nats_per_byte
        return found

    def summary(self) -> dict[str, dict[str, Any]]:
        """Label to mean, standard deviation over seeds, and seeds, nats per byte."""
        return {label: summed(values) for label, values in self.by_seed().items()}

    def gaps(self) -> dict[str, tuple[float, float]]:
        """Label to mean and standard deviation over seeds of the difference to end-to-end training of full depth."""
        by_seed = self.by_seed()
        reference = by_seed.get(REFERENCE, {})
        gaps = {}
        for label, values in by_seed.items():
            differences = [value - reference[seed] for seed, value in values.items() if seed in reference]
            if differences:
                gaps[label] = (statistics.fmean(differences), _spread(differences))
        return gaps


def summed(values: dict[int, float]) -> dict[str, Any]:
    """Mean, standard deviation (0 for a single one) and the seeds of values by seed."""
    return {"mean": statistics.fmean(values.values()), "std": _spread(values.values()), "seeds": sorted(values)}


def _spread(values: Iterable[float]) -> float:
    values = list(values)
    return statistics.stdev(values) if len(values) > 1 else 0.0


def machine(threads: int, jobs: int, device: str) -> dict[str, Any]:
    """What the figures were made on."""
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gpu = torch.cuda.get_device_name() if device.startswith("cuda") and torch.cuda.is_available() else None
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads_per_job": threads,
        "jobs": jobs,
    }


def save(folder: Path, figures: Figures) -> Path:
    """Write ``<experiment>.json`` and ``.csv`` into ``folder``; the JSON file's path."""
    stem = folder / figures.experiment
    content = {
        "format": FORMAT,
        "experiment": figures.experiment,
        "settings": figures.settings,
        "machine": figures.machine,
        "rows": [{key: value for key, value in vars(row).items() if value is not None} for row in figures.rows],
        "curves": figures.curves,
        "also": figures.also,
    }
    path = stem.with_suffix(".json")
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    columns = [name for name in Row.__dataclass_fields__ if name != "facts"]
    write_file(stem.with_suffix(".csv"), csv_text(figures.rows, columns))
    return path


def load(path: Path) -> Figures:
    """Read what ``save`` wrote.

    Raises
    ------
    LabError
        If the file cannot be read, is not an experiment's, or is damaged.
    """
    try:
        content = json.loads(path.read_text())
        if content.get("format") != FORMAT:
            raise LabUsageError(
                f"{path}: is not an experiment's figures of this version; give another {option('output')}"
            )
        rows = [Row(**{"ci95": None, **row}) for row in content["rows"]]
        if not all(math.isfinite(row.nats_per_byte) for row in rows):
            raise ValueError("a figure is not finite")
        seeds = content["settings"]["seeds"]
        if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise ValueError(f"seeds are {str(seeds)[:40]}")
        if not isinstance(content["also"], list) or not all(isinstance(row, dict) for row in content["also"]):
            raise ValueError("also is no table")
        return Figures(
            experiment=content["experiment"],
            settings=content["settings"],
            rows=rows,
            curves={label: [(int(s), float(v)) for s, v in curve] for label, curve in content["curves"].items()},
            machine=content["machine"],
            also=content["also"],
        )
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LabUsageError(
            f"{path}: damaged or half-written ({error}); remove it or give another {option('output')}"
        ) from error


def table(figures: Figures) -> str:
    """The rows as a Markdown table, one for each label, with the gap to end-to-end training of full depth."""
    summary, gaps = figures.summary(), figures.gaps()
    first = {row.label: row for row in reversed(figures.rows)}
    lines = [
        "| | nats/byte | bits/byte | to end-to-end | 95 % over text | tokens | train s |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = list(dict.fromkeys(first[label].group for label in summary))
    group = None
    for label, found in sorted(summary.items(), key=lambda item: groups.index(first[item[0]].group)):
        row = first[label]
        if row.group != group:
            group = row.group
            lines.append(f"| **{group}** | | | | | | |")
        gap = f"{gaps[label][0]:+.4f} ± {gaps[label][1]:.4f}" if label in gaps and label != REFERENCE else ""
        interval = f"± {row.ci95:.3f}" if row.ci95 is not None else ""
        lines.append(
            f"| {label} | {found['mean']:.4f} ± {found['std']:.4f} | {found['mean'] / math.log(2):.4f} | {gap} "
            f"| {interval} | {row.tokens:,} | {row.seconds:.0f} |"
        )
    return "\n".join(lines)


def further_table(rows: list[dict[str, Any]]) -> str:
    """Rows with the same columns as a Markdown table."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_shown(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if isinstance(value, float) else str(value)
