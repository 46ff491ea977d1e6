"""Trying addresses: first a plain TCP connection of our own, then p2pd.

libp2p punishes every failed dial of an address with a pause that grows to five minutes, in which it does not even try.
A bootstrap node that comes up again would stay unseen so long. Hence p2pd is only asked to dial TCP addresses that
answer; and the reason of a failure is known exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from blockswarm.dht.addresses import Address, parse
from blockswarm.dht.control import Control, ControlError

PROBE_SECONDS = 3.0

HEAD_START = 0.4
"""Seconds that the later of two peers in order leaves the earlier one to dial it: more than a packet travels."""

LOOK_SECONDS = 0.05
"""Time between two looks at who is connected meanwhile."""


async def is_dialed(control: Control, own_id: str, peer_id: str) -> bool:
    """Whether ``peer_id``, if it is before us in order, has connected to us within `HEAD_START`; else the dial is ours.

    Replicas learn of each other, and meet, at the same moment. If both dialed then, from the ports they listen on,
    their first packets would cross: TCP makes one connection of that (RFC 9293, §3.5), which both sides take for their
    own call, so that nobody answers the handshake; and so it would go in every round.
    """
    if own_id < peer_id:
        return False
    for _ in range(round(HEAD_START / LOOK_SECONDS)):
        await asyncio.sleep(LOOK_SECONDS)
        if peer_id in await control.list_peers():
            return True
    return False


async def dial(control: Control, peer_id: str, addrs: Sequence[str], timeout: float) -> None:
    """Connect to ``peer_id`` over the first of ``addrs`` (full multiaddrs) that works.

    With no addresses, the daemon looks for the peer by itself.

    Raises
    ------
    ControlError
        With the reason, for instance ``refused``; never later than ``timeout`` seconds.
    """
    try:
        async with asyncio.timeout(timeout):
            parsed = [parse(addr) for addr in addrs]
            reasons = await asyncio.gather(*map(_probe, parsed))
            worth = [address.bare for address, reason in zip(parsed, reasons, strict=True) if reason is None]
            if parsed and not worth:
                raise ControlError(", ".join(dict.fromkeys(reason for reason in reasons if reason)))
            await control.connect(peer_id, worth)
    except TimeoutError:
        raise ControlError("timed out") from None


async def _probe(address: Address) -> str | None:
    """Why nobody answers at ``address``; None if somebody does, or if only p2pd can tell (QUIC, relays)."""
    if address.transport == "quic-v1" or address.relay_id is not None:
        return None
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return "timed out"
    except ConnectionRefusedError:
        return "refused"
    except socket.gaierror:
        return f"DNS name {address.host} unknown"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None
