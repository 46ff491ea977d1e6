"""Which sessions of clients keep their caches at a holder: bounded in number, bytes and time, and fair. Pure.

Nobody can push out the others: when room is short, the client that takes up most of it gives way, with the session it
has not used for longest. So a client that holds no more than its share, the room divided by the number of clients,
keeps what it has whatever the others do. A session without its cache is only slower: its client sends the text again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass
class _Session:
    size: int
    used: float


class SessionBook(Generic[K]):
    """Account of the sessions that are kept.

    Parameters
    ----------
    most_bytes, most_sessions : int
        Room for all clients together.
    most_of_client : int
        Sessions of one client; one more replaces its oldest.
    idle_seconds : float
        A session that is not used for so long is dropped.
    """

    def __init__(self, *, most_bytes: int, most_sessions: int, most_of_client: int, idle_seconds: float) -> None:
        self._most_bytes = most_bytes
        self._most_sessions = most_sessions
        self._most_of_client = most_of_client
        self._idle_seconds = idle_seconds
        self._clients: dict[str, OrderedDict[K, _Session]] = {}  # the session used last comes last
        self._sizes: dict[str, int] = {}
        self.bytes = 0
        """Taken up by all of them."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: tuple[str, K]) -> bool:
        client, session = key
        return session in self._clients.get(client, ())

    def __iter__(self) -> Iterator[tuple[str, K]]:
        return iter([(client, session) for client, kept in self._clients.items() for session in kept])

    def use(self, client: str, session: K, size: int, now: float) -> list[tuple[str, K]]:
        """Note that ``session`` of ``client`` is used and takes ``size`` bytes from now on.

        Returns
        -------
        list of (str, K)
            Who has been dropped for it: perhaps the session itself, when its client takes up more than all others.
        """
        self.drop(client, session)
        kept = self._clients.setdefault(client, OrderedDict())
        kept[session] = _Session(size, now)
        self._sizes[client] = self._sizes.get(client, 0) + size
        self.bytes += size
        self._count += 1
        dropped = []
        while len(kept) > self._most_of_client:
            dropped.append(self._drop_oldest(client))
        while self.bytes > self._most_bytes:
            heaviest = max(self._clients, key=lambda name: (self._sizes[name], -self._age(name)))
            dropped.append(self._drop_oldest(heaviest))
        while self._count > self._most_sessions:
            heaviest = max(self._clients, key=lambda name: (len(self._clients[name]), -self._age(name)))
            dropped.append(self._drop_oldest(heaviest))
        return dropped

    def drop(self, client: str, session: K) -> None:
        """Forget a session, if it is here."""
        kept = self._clients.get(client)
        gone = kept.pop(session, None) if kept else None
        if gone is None:
            return
        self._sizes[client] -= gone.size
        self.bytes -= gone.size
        self._count -= 1
        if not kept:
            del self._clients[client], self._sizes[client]

    def expire(self, now: float) -> list[tuple[str, K]]:
        """Drop, and return, those that have been idle for too long."""
        limit = now - self._idle_seconds
        found = []
        for client, kept in list(self._clients.items()):
            for session, state in list(kept.items()):
                if state.used > limit:
                    break
                self.drop(client, session)
                found.append((client, session))
        return found

    def _age(self, client: str) -> float:
        """When the client's oldest session was used."""
        return next(iter(self._clients[client].values())).used

    def _drop_oldest(self, client: str) -> tuple[str, K]:
        session = next(iter(self._clients[client]))
        self.drop(client, session)
        return client, session
