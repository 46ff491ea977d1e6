"""Methods every peer answers, member of a run or not: who are you, whom do you know, what is on record."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import blockswarm
from blockswarm.dht import frames, lookup
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.peer_id import is_peer_id
from blockswarm.dht.records import EMBEDDING, MAX_BLOCKS, MAX_SHARDS, block_key, is_run_id, progress_key, runs_key
from blockswarm.dht.rpc import Reply, Request

if TYPE_CHECKING:
    from blockswarm.dht.host import Host

SOFTWARE = f"blockswarm {blockswarm.__version__}"
MAX_PEER_ADDRS = 32
RECORDS_FRESH_SECONDS = 1.0
LOOKUP_SECONDS = 5.0
WHOIS_SECONDS = 3.0
_MAX_WHOIS = 8
_MAX_CACHED_KEYS = 256


def register_builtin_methods(host: Host) -> None:
    """Register ``hello``, ``peers``, ``records`` and ``whois`` on ``host``."""
    methods = _Builtin(host)
    for name, handler in (
        ("hello", methods.hello),
        ("peers", methods.peers),
        ("records", methods.records),
        ("whois", methods.whois),
    ):
        host.register(name, handler, run_bound=False, timeout=LOOKUP_SECONDS + 2)


class _Builtin:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._found: OrderedDict[str, tuple[float, list[bytes]]] = OrderedDict()
        self._searches: dict[str, asyncio.Task[list[bytes]]] = {}
        self._whois = 0

    async def hello(self, request: Request) -> Reply:
        """``{"addrs"?: own addresses}`` → who this peer is, its time in Unix seconds, and what it works on."""
        host = self._host
        host.met(request.peer_id)
        addrs = request.body.get("addrs")
        if isinstance(addrs, list):
            # The caller's identity is proven, its addresses are only tried when it is to be called.
            host.learn(request.peer_id, [addr for addr in addrs[:8] if isinstance(addr, str)])
        about: dict[str, Any] = {"runs": [], "block": None, "state": None, "round": None}
        if host.describe is not None:
            about |= host.describe()
        return Reply(
            about
            | {
                "peer_id": host.peer_id,
                "protocol": frames.PROTOCOL_VERSION,
                "software": SOFTWARE,
                "time": host.clock.now(),
                "instance": host.instance,
                "started": host.started,
            }
        )

    async def peers(self, request: Request) -> Reply:
        """``{}`` → addresses of this peer and of peers connected to it, for newcomers: any of them is an entrance."""
        host = self._host
        addrs = host.addresses()[:4]
        for peer_id in host.connected_peers():
            if peer_id != request.peer_id:
                addrs.extend(host.book.addrs(peer_id)[:2])
        return Reply({"addrs": addrs[:MAX_PEER_ADDRS]})

    async def records(self, request: Request) -> Reply:
        """``{"kind", …}`` → sealed records from the DHT; the caller verifies each one itself."""
        key = _requested_key(request.body)
        budget = frames.MAX_HEADER - 4096
        records = []
        for sealed in await self._search(key):
            budget -= len(sealed) + 8
            if budget < 0:
                break
            records.append(sealed)
        return Reply({"records": records})

    async def whois(self, request: Request) -> Reply:
        """``{"peer_id"}`` → whether a live peer with that id is connected here, and which start of it."""
        peer_id = request.body.get("peer_id")
        if not isinstance(peer_id, str) or not is_peer_id(peer_id):
            raise RpcRefused("bad-request", "whois needs a peer_id")
        if peer_id == self._host.peer_id:
            return Reply({"live": True, "instance": self._host.instance, "started": self._host.started})
        if self._whois >= _MAX_WHOIS:
            raise RpcRefused("busy", "too many whois at once", {"retry_after": 1.0})
        self._whois += 1
        try:
            if peer_id not in await self._host.control.list_peers():
                return Reply({"live": False})
            # A connection may be half dead: only an answer counts.
            answer = (await self._host.call(peer_id, "hello", {}, timeout=WHOIS_SECONDS)).body
        except RpcError:
            return Reply({"live": False})
        finally:
            self._whois -= 1
        return Reply({"live": True, "instance": answer.get("instance"), "started": answer.get("started")})

    async def _search(self, key: str) -> list[bytes]:
        """Search the DHT at most once a second per key, however many ask."""
        when, sealed = self._found.get(key, (0.0, []))
        if time.monotonic() - when < RECORDS_FRESH_SECONDS:
            return sealed
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = asyncio.create_task(self._lookup(key))
            search.add_done_callback(lambda _: self._searches.pop(key, None))
        # Shielded: one caller that goes away must not end the search of the others.
        return await asyncio.shield(search)

    async def _lookup(self, key: str) -> list[bytes]:
        entries = await lookup.find(self._host.node, key, self._host.clock.now(), timeout=LOOKUP_SECONDS)
        sealed = [data for data, _ in entries]
        self._found[key] = time.monotonic(), sealed
        self._found.move_to_end(key)
        if len(self._found) > _MAX_CACHED_KEYS:
            self._found.popitem(last=False)
        return sealed


def _requested_key(body: dict[str, Any]) -> str:
    kind, run_id = body.get("kind"), body.get("run_id")
    if kind == "runs":
        return runs_key()
    if not is_run_id(run_id):
        raise RpcRefused("bad-request", "records needs a run_id")
    assert isinstance(run_id, str)
    if kind == "block":
        block, shard = body.get("block"), body.get("shard", 0)
        if type(block) is int and 0 <= block < MAX_BLOCKS and type(shard) is int and 0 <= shard < MAX_SHARDS:
            return block_key(run_id, block, shard)
    if kind == "progress":
        subject = body.get("subject")
        if type(subject) is int and EMBEDDING <= subject < MAX_BLOCKS:
            return progress_key(run_id, subject)
    raise RpcRefused("bad-request", "records needs kind 'runs', 'block' with a block, or 'progress' with a subject")
