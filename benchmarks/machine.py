"""What a benchmark says of the machine that it ran on, and of how it was asked to."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Processors, Python and system."""
    return {"cpus": psutil.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The command line's options as JSON takes them, apart from how to print."""
    given = {key: value for key, value in vars(options).items() if key != "json"}
    return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
