"""Where the ``blockswarm`` command begins: Ctrl-C is heard from here on, also while everything else is imported."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130
"""128 + SIGINT, what a shell reports for a program ended by Ctrl-C."""


def main() -> NoReturn:
    """Entry point of the ``blockswarm`` command."""
    # Whoever started us with SIGINT ignored (a background job of a script) wants it ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from blockswarm.cli.main import main as front

    front()


def raise_on_ctrl_c() -> None:
    """From here on somebody catches ``KeyboardInterrupt``. A program that did not begin with `main` is left alone."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)
