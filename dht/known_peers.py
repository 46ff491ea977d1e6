"""Peers met earlier, kept in a small file: when every bootstrap node is down, any of them is an entrance."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from blockswarm.dht.addresses import parse, split_peer
from blockswarm.dht.errors import AddressError
from blockswarm.files import write_atomically

logger = logging.getLogger(__name__)

MAX_PEERS = 64
MAX_ADDRS_PER_PEER = 4
_MAX_FILE = 1 << 20


class KnownPeers:
    """Addresses of peers that were reachable, the latest last; a damaged file only means a fresh start.

    Parameters
    ----------
    path : str or Path
        JSON file ``{"peers": [[addr, …], …]}``; made on the first `save`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._peers: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._saved: list[list[str]] = []
        for addrs in self._read():
            self.remember(addrs)
        self._saved = self._content()

    def addrs(self) -> list[str]:
        """Full multiaddrs, those of the peer met last first."""
        return [addr for addrs in reversed(self._peers.values()) for addr in addrs]

    def remember(self, addrs: Sequence[str]) -> None:
        """Note a peer that was just reached, by its full multiaddrs; unusable ones are left out."""
        usable: dict[str, None] = {}
        owner = None
        for addr in addrs:
            try:
                _, peer_id = split_peer(addr)
                direct = parse(addr).relay_id is None
            except AddressError:
                continue
            owner = owner or peer_id
            if peer_id == owner and direct:
                usable[addr] = None
        if owner is None or not usable:
            return
        self._peers[owner] = tuple(usable)[:MAX_ADDRS_PER_PEER]
        self._peers.move_to_end(owner)
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)

    def save(self) -> None:
        """Write the file if anything changed; a disk that refuses is logged, for the list is only a convenience."""
        content = self._content()
        if content == self._saved:
            return
        try:
            write_atomically(self.path, json.dumps({"peers": content}, indent=0).encode())
        except OSError as error:
            logger.warning("known peers not saved to %s: %s", self.path, error.strerror)
            return
        self._saved = content

    def _content(self) -> list[list[str]]:
        return [list(addrs) for addrs in self._peers.values()]

    def _read(self) -> list[list[str]]:
        try:
            with self.path.open("rb") as file:
                content = json.loads(file.read(_MAX_FILE))
            peers = content["peers"]
            if not isinstance(peers, list):
                raise ValueError
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            logger.warning("known peers in %s cannot be read; starting with none", self.path)
            return []
        return [
            [addr for addr in addrs if isinstance(addr, str)] for addrs in peers[-MAX_PEERS:] if isinstance(addrs, list)
        ]
