"""Reading and writing the DHT with a bound on time, in terms of records."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from blockswarm.dht.records import Record
from blockswarm.dht.validator import parse_entries

logger = logging.getLogger(__name__)


async def find(node: Any, key: str, now: float, *, timeout: float) -> list[tuple[bytes, Record]]:
    """All valid records under ``key``: sealed bytes and content. Empty when there are none or time is up."""
    try:
        async with asyncio.timeout(timeout):
            found = await node.get(key, latest=True)
    except TimeoutError:
        logger.debug("search for %s took longer than %.1f s", key, timeout)
        return []
    except Exception:
        # hivemind asserts on what other nodes send; a bad answer is no answer.
        logger.debug("search for %s failed", key, exc_info=True)
        return []
    if found is None or not isinstance(found.value, dict):
        return []
    return parse_entries(found.value, key=key, now=now)


async def store(node: Any, key: str, owner: str, sealed: bytes, expires: float, *, timeout: float) -> bool:
    """Store a sealed record; False if no node took it (one that has a later one refuses) or time is up."""
    try:
        async with asyncio.timeout(timeout):
            return bool(await node.store(key, sealed, expires, subkey=owner))
    except TimeoutError:
        logger.debug("storing %s took longer than %.1f s", key, timeout)
        return False
    except Exception:
        logger.debug("storing %s failed", key, exc_info=True)
        return False
