"""What the texts show: whether each is that of plain decoding, and what a difference means. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.soak.serving.plan import Cell

MOST_FLIPS = 1e-5
"""Float ties that may turn, per byte compared."""


@dataclass(frozen=True)
class Outcome:
    """What came of one cell."""

    cell: int
    bytes: int
    """Bytes compared: up to the first that differs, it included."""
    round_trips: int = 0
    drafted: int = 0
    accepted: int = 0
    unsettled: int = 0
    """Bytes asked for once more by themselves, because rounding could have turned them."""
    struck: int = 0
    """What was done to holders while the text was written: deaths, or rounds committed."""
    repinned: int = 0
    differs_at: int | None = None
    """Place of the first byte, after the prompt, that is another one."""
    tie: bool = False
    """Whether plain decoding takes that byte by no more than rounding."""
    again: str = ""
    """A text that differed, asked again undisturbed: ``same`` as plain decoding, or ``different``."""
    error: str = ""
    """Why there is no text."""
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether the promise is broken: a tie that turned is not, so long as they are few."""
        return bool(self.error) or self.repinned > 0 or (self.differs_at is not None and not self.tie)


def first_difference(found: bytes, expected: bytes) -> int | None:
    """Place of the first byte that is another one, or is missing; None where there is none."""
    if found == expected:
        return None
    pairs = zip(found, expected, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(found), len(expected)))


def figures(cells: Sequence[Cell], outcomes: Mapping[int, Outcome]) -> dict[str, Any]:
    """The totals, and what broke the promise."""
    done = [(cell, outcomes[cell.number]) for cell in cells if cell.number in outcomes]
    compared = sum(outcome.bytes for _, outcome in done)
    flips = [outcome for _, outcome in done if outcome.differs_at is not None and outcome.tie]
    return {
        "cells": len(done),
        "cells_planned": len(cells),
        "prompts": len({cell.prompt for cell, _ in done}),
        "bytes_compared": compared,
        "differing_texts": sum(outcome.differs_at is not None for _, outcome in done),
        "ties_flipped": len(flips),
        "ties_flipped_and_right_when_asked_again": sum(outcome.again == "same" for outcome in flips),
        "bytes_asked_again_alone": sum(outcome.unsettled for _, outcome in done),
        "round_trips": sum(outcome.round_trips for _, outcome in done),
        "drafted": sum(outcome.drafted for _, outcome in done),
        "accepted": sum(outcome.accepted for _, outcome in done),
        "wrong": [{"cell": cell.__dict__, "outcome": outcome.__dict__} for cell, outcome in done if outcome.wrong],
        "by": {
            name: _table((getattr(cell, name), outcome) for cell, outcome in done)
            for name in ("temperature", "draft", "readout", "disturbance", "length")
        },
    }


def failures(found: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, one line each."""
    problems = []
    for entry in found["wrong"]:
        cell, outcome = entry["cell"], entry["outcome"]
        what = outcome["error"] or (f"byte {outcome['differs_at']} is another one" if not outcome["repinned"] else "")
        problems.append(f"cell {cell['number']} ({cell['draft']}, {cell['disturbance']}): {what or 'states were lost'}")
    # Up to the first hundred thousand bytes one tie is within the bound.
    if found["ties_flipped"] > max(1.0, MOST_FLIPS * found["bytes_compared"]):
        problems.append(f"{found['ties_flipped']} ties flipped in {found['bytes_compared']} bytes")
    return problems


def markdown(found: Mapping[str, Any]) -> str:
    """The report for people."""
    settings = found["settings"]
    lines = [
        "# Exact text from holders that come and go",
        "",
        f"{found['cells']} of {found['cells_planned']} texts of {settings['bytes']} bytes, {found['prompts']} prompts, "
        f"seed {settings['seed']}, {found['seconds'] / 60:.1f} minutes.",
        "",
        "| | |",
        "|---|---|",
        f"| bytes compared | {found['bytes_compared']:,} |",
        f"| texts that differ | {found['differing_texts']} |",
        f"| float ties that flipped (right when asked again) | {found['ties_flipped']} "
        f"({found['ties_flipped_and_right_when_asked_again']}) |",
        f"| bytes that were asked for alone, being near a tie | {found['bytes_asked_again_alone']} |",
        f"| broken promises | {len(found['wrong'])} |",
    ]
    for name, table in found["by"].items():
        lines += ["", f"| {name} | texts | bytes | bytes a round trip | drafted bytes that stand | differ | struck |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {key} | {row['texts']} | {row['bytes']:,} | {row['bytes'] / max(1, row['round_trips']):.1f} | "
            f"{row['accepted'] / max(1, row['drafted']):.2f} | {row['differ']} | {row['struck']} |"
            for key, row in table.items()
        ]
    lines += ["", *(f"* {problem}" for problem in failures(found))]
    return "\n".join(lines).rstrip() + "\n"


def _table(entries: Iterable[tuple[Any, Outcome]]) -> dict[str, dict[str, int]]:
    rows: dict[Any, Counter[str]] = {}
    for key, outcome in entries:
        row = rows.setdefault(key, Counter())
        row["texts"] += 1
        row["differ"] += outcome.differs_at is not None
        for name in ("bytes", "round_trips", "drafted", "accepted", "struck"):
            row[name] += getattr(outcome, name)
    names = ("texts", "bytes", "round_trips", "drafted", "accepted", "differ", "struck")
    return {str(key): {name: rows[key][name] for name in names} for key in sorted(rows)}
