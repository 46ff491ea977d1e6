"""Fetching what a client drafts with, beside the texts that are being written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from blockswarm.errors import BlockswarmError
from blockswarm.swarm.core import Core


def fetch_beside(core: Core, name: str, seconds: float, fetch: Callable[[], Awaitable[str]]) -> None:
    """Have the predictor ``name`` fetched, unless it is there or on its way; an event tells how that went.

    Parameters
    ----------
    core : Core
        Whose shelf it is for.
    name : str
        What it goes by on the shelf.
    seconds : float
        Time for it.
    fetch : callable
        Fetches it and puts it on the shelf; returns what to tell.
    """
    if not core.shelf.has(name) and name not in core.shelf.coming:
        core.shelf.coming.add(name)
        core.nursery.start_soon(_fetch, core, name, seconds, fetch)


async def _fetch(core: Core, name: str, seconds: float, fetch: Callable[[], Awaitable[str]]) -> None:
    try:
        with trio.fail_after(seconds):
            told = await fetch()
        core.notify("drafting", told)
    except (BlockswarmError, OSError, trio.TooSlowError) as error:
        why = str(error) or f"{seconds:g} s were not enough"
        core.notify("drafting", f"no {name} to draft with: {why}")
    finally:
        core.shelf.coming.discard(name)
