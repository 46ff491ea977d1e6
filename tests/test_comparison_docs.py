"""docs/comparison.md: every cell has a source, every source is used."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "comparison.md").read_text()
USED = set(re.findall(r"\[\^([\w-]+)\](?!:)", TEXT))
DEFINED = set(re.findall(r"^\[\^([\w-]+)\]:", TEXT, re.MULTILINE))
SYSTEMS = 11
AXES = 6


def test_sources_and_their_uses_match() -> None:
    assert USED == DEFINED


def test_every_cell_names_its_source_or_says_that_none_was_read() -> None:
    cells = [line.split("|")[2] for line in TEXT.splitlines() if re.match(r"\| (?!system)", line)]
    assert len(cells) == AXES * SYSTEMS
    assert [cell for cell in cells if "[^" not in cell and "*not read*" not in cell] == []
