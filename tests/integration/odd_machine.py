"""The ``blockswarm`` command on a machine with something wrong: ``python odd_machine.py little-memory join …``.

``little-memory``
    Ten megabytes of memory are free.
``fast-clock``
    The clock is five minutes ahead.
``quick-saves``
    Nothing is wrong; a volunteer saves after every round, not at most every half minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import _patch, patch

import psutil

from blockswarm.cli.main import main

CLOCK_AHEAD = 300.0

memory = psutil.virtual_memory()
real_time = time.time
ODDITIES: Mapping[str, _patch[Any]] = {
    "little-memory": patch.object(psutil, "virtual_memory", lambda: memory._replace(available=10_000_000)),
    "fast-clock": patch.object(time, "time", lambda: real_time() + CLOCK_AHEAD),
    "quick-saves": patch("blockswarm.peer.peer.CHECKPOINT_SECONDS", 0.1),
}

if __name__ == "__main__":
    with ODDITIES[sys.argv.pop(1)]:
        main()
