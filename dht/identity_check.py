"""Is this identity running somewhere else? Asked before the second one shows up, so the first is not disturbed.

Two peers with one identity break each other's connections in ways nobody understands. The question is therefore asked
by a short-lived daemon with a random identity: it asks up to three initial peers ``whois <our id>``; they say whether a
live peer with that id is connected to them (they call it to be sure). Costs about half a second, in parallel to
the start of the real daemon; nobody reachable means nobody to ask, and the keeper asks again later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from blockswarm.dht import frames
from blockswarm.dht.addresses import split_peer
from blockswarm.dht.control import Control
from blockswarm.dht.daemon import Daemon
from blockswarm.dht.dialing import dial
from blockswarm.dht.errors import DhtError
from blockswarm.dht.identity import Identity
from blockswarm.dht.rpc import Traffic, call_on_stream

logger = logging.getLogger(__name__)

DIAL_SECONDS = 2.0
ANSWER_SECONDS = 4.0
ASKED = 3


async def running_elsewhere(peer_id: str, initial_peers: Sequence[str]) -> str | None:
    """The address of a peer that confirms that ``peer_id`` is alive elsewhere; None if nobody does.

    Never raises for trouble on the network, never takes longer than about 7 s (half a second when all is well).
    """
    chosen = random.sample(list(initial_peers), min(ASKED, len(initial_peers)))
    try:
        daemon = await Daemon.start(Identity.ephemeral(), listen=(), timeout=5.0)
    except DhtError as error:
        logger.debug("identity check skipped: %s", error)
        return None
    try:
        control = Control(daemon.control_path)
        answers = await asyncio.gather(*(_ask(control, addr, peer_id) for addr in chosen))
    finally:
        await daemon.stop()
    return next((addr for addr, live in zip(chosen, answers, strict=True) if live), None)


async def _ask(control: Control, addr: str, peer_id: str) -> bool:
    _, asked = split_peer(addr)
    try:
        await dial(control, asked, [addr], DIAL_SECONDS)
        async with asyncio.timeout(ANSWER_SECONDS), control.open_stream(asked, frames.PROTOCOL_ID) as (reader, writer):
            request = frames.encode_request("whois", {"peer_id": peer_id})
            reply = await call_on_stream(reader, writer, request, b"", 0, Traffic())
    except (DhtError, OSError, EOFError, TimeoutError) as error:
        logger.debug("identity check at %s: %r", addr, error)
        return False
    return reply.body.get("live") is True
