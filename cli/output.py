"""How commands print results."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on one line of standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def for_terminal(text: str) -> str:
    r"""``text`` with its control characters, other than line ends and tabs, shown as ``\x1b``.

    The swarm's bytes come from strangers, and escape sequences steer terminals. Files and pipes get the text as it is.
    """
    return "".join(character if _harmless(character) else f"\\x{ord(character):02x}" for character in text)


def _harmless(character: str) -> bool:
    return character in "\n\t" or not unicodedata.category(character).startswith("C")
