"""hivemind's DHT node, set up for strangers: bounded storage, answers checked before they are merged.

hivemind gives the Kademlia: routing, replication, search. What is added here closes doors we found open in 1.1.12:

* Storage and the dictionaries in it grow without bound; an entry sent again with an earlier (still valid) signed record
  shortens the life of the newer one; searches merge remote entries into the local storage object.
* One answer with a huge expiration time ends a search early; an answer may name any number of "nearest" nodes.
* A reply that arrives in the moment its call is cancelled ends the task that reads all replies.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

from blockswarm.dht.daemon import Daemon
from blockswarm.dht.hivemind_parts import (
    DHTID,
    P2P,
    DHTNode,
    DictionaryDHTValue,
    Multiaddr,
    PeerID,
    TimedStorage,
    ValueWithExpiration,
)
from blockswarm.dht.peer_id import peer_id_bytes
from blockswarm.dht.validator import SignedRecordValidator

MAX_KEYS = 8192
MAX_SUBKEYS = 512
"""Times `MAX_RECORD`, about 2 MiB: an answer with the whole dictionary stays under hivemind's 4 MiB."""
BUCKET_SIZE = 20
RPC_SECONDS = 1.0
"""One stalled peer makes others wait this long, once per search."""


async def attach(daemon: Daemon) -> P2P:
    """hivemind's client of our p2pd, with its sockets in our private folder."""
    if "HIVEMIND_LOGLEVEL" not in os.environ:
        # What it warns of, with tracebacks, is other peers going away: every day's work, told by us where it matters.
        logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    kind: Any = type("AttachedP2P", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{daemon.folder}/"})
    p2p = await kind.replicate(Multiaddr(f"/unix{daemon.control_path}"))
    control = p2p._client.control
    control._pending_calls = _PendingCalls()
    control._handler_tasks = _HandlerTasks()
    return p2p


async def create_node(p2p: P2P, validator: SignedRecordValidator, peer_id: str) -> DHTNode:
    """A DHT node that starts alone; peers are pinged into its routing table as they are met.

    Its place in the key space follows from the peer id, so that a restarted peer takes its old place.
    """
    node = await DHTNode.create(
        p2p=p2p,
        node_id=DHTID.generate(source=peer_id),
        bucket_size=BUCKET_SIZE,
        num_replicas=5,
        parallel_rpc=64,
        wait_timeout=RPC_SECONDS,
        # No copies beyond the replicas: a directory wants the latest entry, and the refresh task never ends.
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        cache_size=1,
        # Shared searches are kept per key for ever, and keys may come from strangers.
        reuse_get_requests=False,
        # Short and constant: a peer that was away for a minute must be asked again.
        blacklist_time=5.0,
        backoff_rate=1.0,
        record_validator=validator,
        ensure_bootstrap_success=False,
        strict=False,
    )
    node.protocol.storage = BoundedStorage(MAX_KEYS, MAX_SUBKEYS)
    node.protocol.cache = BoundedStorage(1, MAX_SUBKEYS)
    node.protocol.call_find = _checked_find(node.protocol.call_find)
    return node


class BoundedStorage:
    """What a node stores, in place of hivemind's own: at most ``max_keys`` keys of ``max_subkeys`` entries each.

    What is full takes nothing new until something expires: those who are there already, and go on announcing, are safe
    from a flood.
    """

    def __init__(self, max_keys: int, max_subkeys: int) -> None:
        self.held = TimedStorage()
        """Key to entries; forgets what has expired."""
        self._max_keys = max_keys
        self._max_subkeys = max_subkeys

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, key: DHTID) -> bool:
        return key in self.held

    def items(self) -> Iterator[tuple[DHTID, ValueWithExpiration]]:
        """All keys with their entries."""
        return iter(self.held.items())

    def get(self, key: DHTID) -> ValueWithExpiration | None:
        """A copy of the entries under ``key``: searches merge other nodes' answers into what they get."""
        found = self.held.get(key)
        if found is None or not isinstance(found.value, DictionaryDHTValue):
            return found
        copy = DictionaryDHTValue()
        for subkey, entry in found.value.items():
            copy.store(subkey, entry.value, entry.expiration_time)
        return ValueWithExpiration(copy, found.expiration_time) if copy else None

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Only entries with a subkey: the records of this swarm all have an owner."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Keep the entry if it is newer than what is there and there is room."""
        found = self.held.get(key)
        if found is None and len(self) >= self._max_keys:
            return False
        entries = found.value if found is not None else DictionaryDHTValue()
        known = entries.get(subkey)
        if known is not None and known.expiration_time >= expiration_time:
            return bool(known.expiration_time == expiration_time and known.value == value)
        if known is None and len(entries) >= self._max_subkeys:
            return False
        if not entries.store(subkey, value, expiration_time):
            return False
        if found is None or expiration_time > found.expiration_time:
            # The key lives as long as its longest-lived entry.
            self.held.store(key, entries, expiration_time)
        return True


Find = Callable[[Any, Collection[DHTID]], Awaitable[dict[DHTID, tuple[Any, dict[DHTID, Any]]] | None]]


def _checked_find(find: Find) -> Find:
    async def checked(peer: Any, keys: Collection[DHTID]) -> dict[DHTID, tuple[Any, dict[DHTID, Any]]] | None:
        answers = await find(peer, keys)
        if answers is None:
            return None
        return {
            key: (_rebuilt(value), dict(itertools.islice(nearest.items(), 2 * BUCKET_SIZE)))
            for key, (value, nearest) in answers.items()
        }

    return checked


def _rebuilt(found: Any) -> ValueWithExpiration | None:
    # The entries passed the validator; what surrounds them (size limits, the total's expiration) is the sender's word.
    if found is None or not isinstance(found.value, DictionaryDHTValue):
        return None
    clean = DictionaryDHTValue()
    latest = 0.0
    for subkey, entry in itertools.islice(found.value.items(), MAX_SUBKEYS):
        if clean.store(subkey, entry.value, entry.expiration_time):
            latest = max(latest, entry.expiration_time)
    return ValueWithExpiration(clean, latest) if clean else None


class _PendingCalls(dict[Any, "asyncio.Future[Any]"]):
    """Calls waiting for a reply; one that is cancelled already no longer counts, or setting its result would raise."""

    def __contains__(self, call: object) -> bool:
        return super().__contains__(call) and not self[call].done()


class _HandlerTasks(dict[Any, "asyncio.Task[Any]"]):
    """Inbound calls in progress; also forgets those that end by cancellation, which hivemind keeps for ever."""

    def __setitem__(self, call: Any, task: asyncio.Task[Any]) -> None:
        super().__setitem__(call, task)
        task.add_done_callback(lambda _: self.pop(call, None))


def to_peer_id(peer_id: str) -> PeerID:
    """hivemind's form of a peer id."""
    return PeerID(peer_id_bytes(peer_id))
