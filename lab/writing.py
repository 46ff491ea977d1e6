"""Writing what experiments leave in an output folder: in full or not at all, and one line where that fails."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from blockswarm.files import write_atomically
from blockswarm.lab.errors import LabError


def write_file(path: Path, data: bytes | str) -> None:
    """Write ``data``, text as UTF-8, making the folder where it is missing.

    Raises
    ------
    LabError
        If the file or its folder cannot be written; what was there before stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise LabError(f"{path}: cannot be written: {error.strerror or error}") from error


def csv_text(rows: Iterable[Any], columns: Sequence[str]) -> str:
    """These attributes of each of ``rows`` as CSV with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(vars(row) for row in rows)
    return out.getvalue()
