"""Keeps a peer connected: to its initial peers, to enough others, and again after every loss, for ever and patiently.

Every few seconds it looks who is connected. New ones are greeted (addresses exchanged, routing tables updated). Absent
initial peers are dialled with growing pauses; so are peers heard of earlier, a few at a time, which is also how the two
halves of a split swarm find each other again. A failing address is reported once, and again when its reason changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blockswarm.dht.addresses import split_peer
from blockswarm.dht.control import ControlError
from blockswarm.dht.dialing import dial, is_dialed
from blockswarm.dht.errors import RpcError
from blockswarm.dht.known_peers import KnownPeers

if TYPE_CHECKING:
    from blockswarm.dht.host import Host

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
DIAL_SECONDS = 5.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
STRANGERS_SECONDS = 15.0
"""Between two rounds of dialling peers known only by hearsay or from earlier."""
STRANGERS_AT_ONCE = 2
ALONE_AT_ONCE = 8
UPKEEP_SECONDS = 60.0
GREETINGS_AT_ONCE = 8
GREETING_ATTEMPTS = 3
MAX_CONNECTED = 64
"""With so many connections nobody needs to look for more."""


class Keeper:
    """The background tasks of one `Host`; see the module.

    Attributes
    ----------
    connected : set of str
        Peer ids connected when last looked.
    """

    def __init__(self, host: Host, initial_peers: Sequence[str], known_peers: KnownPeers | None) -> None:
        self.connected: set[str] = set()
        self._host = host
        self._known = known_peers
        self._initial: dict[str, list[str]] = {}
        for addr in initial_peers:
            _, peer_id = split_peer(addr)
            if peer_id != host.peer_id:
                self._initial.setdefault(peer_id, []).append(addr)
        for addr in known_peers.addrs() if known_peers else ():
            _, peer_id = split_peer(addr)
            host.book.learn(peer_id, [*host.book.addrs(peer_id), addr])
        for peer_id, addrs in self._initial.items():
            host.book.learn(peer_id, addrs)
        self._attempts: dict[str, int] = {}
        self._greeting: set[str] = set()
        self._greetings = asyncio.Semaphore(GREETINGS_AT_ONCE)
        self._reasons: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin; returns at once."""
        self._spawn(self._forever(self._look, LOOK_SECONDS))
        self._spawn(self._forever(self._upkeep, UPKEEP_SECONDS, first=UPKEEP_SECONDS))
        self._spawn(self._forever(self._dial_strangers, STRANGERS_SECONDS, first=0.0 if not self._initial else 3.0))
        for peer_id, addrs in self._initial.items():
            self._spawn(self._keep(peer_id, addrs))

    async def stop(self) -> None:
        """End all tasks and save the known peers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=0.5) if self._tasks else None
        if self._known is not None:
            self._known.save()

    async def introduce(self, peer_id: str) -> None:
        """Greet a connected peer: exchange addresses, enter each other's routing tables. Never raises."""
        if peer_id in self._greeting:
            return
        self._greeting.add(peer_id)
        try:
            await self._greet(peer_id)
        finally:
            self._greeting.discard(peer_id)

    async def _greet(self, peer_id: str) -> None:
        host = self._host
        self._attempts[peer_id] = self._attempts.get(peer_id, 0) + 1
        async with self._greetings:
            try:
                reply = await host.call(peer_id, "hello", {"addrs": host.addresses()}, timeout=5.0)
            except RpcError as error:
                # A light client answers no calls, and need not; a version that differs, the user should know.
                if error.code == "protocol" or peer_id in self._initial:
                    self._say(peer_id, f"peer {peer_id}: {error.text}")
                return
            if not await host.ping(peer_id):
                return
            self._attempts[peer_id] = GREETING_ATTEMPTS
            if reply.body.get("peer_id") != peer_id:
                self._say(peer_id, f"peer {peer_id} calls itself {str(reply.body.get('peer_id'))[:60]!r}")
            await self._ask_for_peers(peer_id)
        if self._known is not None and (addrs := host.book.addrs(peer_id)):
            self._known.remember(addrs)

    async def _ask_for_peers(self, peer_id: str) -> None:
        with contextlib.suppress(RpcError):
            addrs = (await self._host.call(peer_id, "peers", {}, timeout=5.0)).body.get("addrs")
            for addr in addrs[:32] if isinstance(addrs, list) else ():
                if not isinstance(addr, str):
                    continue
                with contextlib.suppress(Exception):
                    _, other = split_peer(addr)
                    if not self._host.book.addrs(other):
                        self._host.learn(other, [addr])

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forever(self, work: Any, pause: float, *, first: float = 0.0) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await work()
            except ControlError as error:
                logger.debug("%s", error)
            except Exception:
                self._say(work.__name__, f"{work.__name__} failed", trace=True)
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        self.connected = set(await self._host.control.list_peers())
        self._attempts = {peer: tries for peer, tries in self._attempts.items() if peer in self.connected}
        for peer_id in self.connected - self._greeting:
            if self._attempts.get(peer_id, 0) < GREETING_ATTEMPTS:
                self._spawn(self.introduce(peer_id))

    async def _keep(self, peer_id: str, addrs: list[str]) -> None:
        """Stay connected to one initial peer."""
        pause = FIRST_PAUSE
        while True:
            if peer_id in self.connected:
                pause = FIRST_PAUSE
            elif await self._dial(peer_id, addrs):
                self.connected.add(peer_id)
                await self.introduce(peer_id)
            else:
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            await asyncio.sleep(LOOK_SECONDS)

    async def _dial(self, peer_id: str, addrs: Sequence[str]) -> bool:
        name = ", ".join(addrs)
        try:
            await dial(self._host.control, peer_id, addrs, DIAL_SECONDS)
        except ControlError as error:
            self._host.book.failed(peer_id, time.monotonic())
            if peer_id in self._initial:
                self._say(name, f"initial peer {name}: {error}; trying again")
            return False
        self._host.book.succeeded(peer_id)
        if self._reasons.pop(name, None) is not None:
            logger.info("initial peer %s: connected", name)
        return True

    async def _dial_strangers(self) -> None:
        """Try a few peers not connected; more of them when nobody is."""
        if len(self.connected) >= MAX_CONNECTED:
            return
        due = self._host.book.due(self.connected, time.monotonic())
        due = [peer_id for peer_id in due if peer_id not in self._initial]
        chosen = random.sample(due, min(len(due), STRANGERS_AT_ONCE if self.connected else ALONE_AT_ONCE))
        await asyncio.gather(*map(self._dial_stranger, chosen))

    async def _dial_stranger(self, peer_id: str) -> None:
        if not await is_dialed(self._host.control, self._host.peer_id, peer_id):
            await self._dial(peer_id, self._host.book.addrs(peer_id))

    async def _upkeep(self) -> None:
        """Refresh addresses and routing table, save the known peers, look for a second peer with our identity."""
        host = self._host
        await host.refresh_addresses()
        if self._known is not None:
            self._known.save()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await host.node.find_nearest_nodes([host.node.node_id])
        if present := [peer_id for peer_id in self._initial if peer_id in self.connected]:
            asked = random.choice(present)
            with contextlib.suppress(RpcError):
                reply = await host.call(asked, "whois", {"peer_id": host.peer_id}, timeout=5.0)
                if reply.body.get("live") is True:
                    self._check_twin(reply.body)

    def _check_twin(self, answer: dict[str, Any]) -> None:
        instance, started = answer.get("instance"), answer.get("started")
        if instance == self._host.instance or not isinstance(started, float):
            return
        if started < self._host.started:
            self._host.fail(
                f"identity {self._host.peer_id} is already running elsewhere; "
                "stop that peer or use another identity file"
            )
        else:
            self._say(
                "twin", f"a second peer with our identity {self._host.peer_id} has started; it should stop by itself"
            )

    def _say(self, what: str, line: str, *, trace: bool = False) -> None:
        """Report once per subject and wording: a node that is down for a day is one line."""
        if self._reasons.get(what) == line:
            logger.debug("%s", line)
            return
        if len(self._reasons) > 1000:
            self._reasons.clear()
        self._reasons[what] = line
        logger.warning("%s", line, exc_info=trace)
