"""How commands print results."""

from __future__ import annotations

import json
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on one line of standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))
