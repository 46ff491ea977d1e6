"""A process that its parent moves: one JSON command a line on standard input, each answered by one JSON line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any


async def answer_commands(carry_out: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Carry out commands until standard input ends; one that fails is answered with its ``error``."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await carry_out(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
