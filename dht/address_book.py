"""Which addresses peers are said to have: bounded, newest kept, with a growing pause after each failed dial."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass

from blockswarm.dht.addresses import parse
from blockswarm.dht.errors import AddressError
from blockswarm.dht.peer_id import is_peer_id

MAX_PEERS = 1024
MAX_ADDRS_PER_PEER = 8
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0


@dataclass
class _Entry:
    addrs: tuple[str, ...]
    failures: int = 0
    next_try: float = 0.0


class AddressBook:
    """Peer id → multiaddrs that end in ``/p2p/<that peer>``; the peers heard of longest ago are forgotten first."""

    def __init__(self, own_peer_id: str) -> None:
        self._own = own_peer_id
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def learn(self, peer_id: str, addrs: Iterable[str]) -> None:
        """Note what ``peer_id`` is reached at, replacing what was known; unusable addresses are left out.

        Addresses that go without ``/p2p`` or name another peer do not count: they could send us anywhere.
        """
        if peer_id == self._own or not is_peer_id(peer_id):
            return
        usable: list[str] = []
        for addr in addrs:
            try:
                address = parse(addr)
            except AddressError:
                continue
            if address.peer_id == peer_id and address.port and addr not in usable:
                usable.append(addr)
            if len(usable) == MAX_ADDRS_PER_PEER:
                break
        if not usable:
            return
        entry = self._entries.get(peer_id)
        if entry is None or entry.addrs != tuple(usable):
            # New addresses deserve a new chance.
            self._entries[peer_id] = _Entry(tuple(usable))
        self._entries.move_to_end(peer_id)
        while len(self._entries) > MAX_PEERS:
            self._entries.popitem(last=False)

    def addrs(self, peer_id: str) -> tuple[str, ...]:
        """Known full multiaddrs of ``peer_id``, possibly none."""
        entry = self._entries.get(peer_id)
        return entry.addrs if entry else ()

    def succeeded(self, peer_id: str) -> None:
        """A dial worked."""
        if entry := self._entries.get(peer_id):
            entry.failures, entry.next_try = 0, 0.0

    def failed(self, peer_id: str, now: float) -> None:
        """A dial failed at ``now`` (seconds): `due` leaves the peer out for a while."""
        if entry := self._entries.get(peer_id):
            entry.next_try = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2**entry.failures)
            entry.failures = min(entry.failures + 1, 16)

    def due(self, connected: Container[str], now: float) -> list[str]:
        """Peers not connected whose pause is over."""
        return [p for p, entry in self._entries.items() if p not in connected and entry.next_try <= now]
