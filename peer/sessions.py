"""What a holder keeps of its clients' texts: the keys and values of the windows they are in, cut back where a draft was
rejected. All of it is used on the serving worker only, so nothing here needs a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blockswarm.dht.errors import RpcRefused
from blockswarm.model.config import ModelConfig
from blockswarm.model.mixing import sweep_noise
from blockswarm.model.windows import shared
from blockswarm.swarm.memory import cache_bytes, session_bytes
from blockswarm.swarm.policy.sessions import SessionBook
from blockswarm.swarm.session_messages import SessionRequest, text_check

if TYPE_CHECKING:
    from blockswarm.model.block import Cache
    from blockswarm.model.readout import BlockReader

Float32 = NDArray[np.float32]

MOST_SESSIONS = 256
MOST_SESSIONS_OF_CLIENT = 64
"""A gateway is one client, with a session for every text it writes."""

IDLE_SECONDS = 60.0
"""As long as a state stays that nobody has asked for."""

WINDOWS_KEPT = 2
"""Of a session: a draft that reaches into the next window may be rejected in this one."""


@dataclass(frozen=True, eq=False)
class Asked:
    """One request of a session."""

    client: str
    request: SessionRequest
    windows: Sequence[tuple[int, int, int]]
    """``request.windows(context)``: begin, end, and the first row wanted of each."""
    z: Float32 | None = None
    """Of a sweep: float32 ``[len(new), dim]``; None for its first block, which draws it."""

    @property
    def states(self) -> tuple[bytes, bytes]:
        """Digests of the block's state and the embedding's."""
        return self.request.digest, self.request.embedding_digest

    def noise(self, dim: int) -> Float32:
        """z of the new bytes, sent or drawn."""
        if self.z is not None:
            return self.z
        return sweep_noise(self.request.seed or 0, self.request.at, len(self.request.new), dim)


@dataclass
class _Held:
    """What is kept of one session."""

    kind: tuple[bytes, bytes, int | None]
    """States and seed: another of these is another function."""
    start: int
    """Absolute position of the first byte in ``text``."""
    text: bytes
    caches: dict[int, Cache] = field(default_factory=dict)
    """By the absolute position at which the window begins."""

    def known(self, start: int, at: int, check: bytes) -> bytes | None:
        """The bytes from ``start`` to ``at`` if they are here and those that the caller means."""
        if not self.start <= start < at <= self.start + len(self.text):
            return None
        text = self.text[start - self.start : at - self.start]
        return text if text_check(text) == check else None

    def same(self, request: SessionRequest) -> int:
        """Absolute position up to which the text goes on here as in a request that begins behind its start.

        A client that asks ahead sends what it asked about before its answer is back once more. In a sweep nothing is
        the same: z of the new bytes is what the next block waits for.
        """
        if request.seed is not None or not self.start < request.at:
            return request.at
        return request.at + shared(request.new, self.text[request.at - self.start :])


@dataclass
class _Piece:
    """What must be computed of one window."""

    cache: Cache
    new: NDArray[np.uint8]
    skip: int
    """Rows of it that were not asked for."""


class HolderSessions:
    """The sessions at one holder.

    Parameters
    ----------
    config : ModelConfig
        The model.
    now : callable
        The clock.
    """

    def __init__(self, config: ModelConfig, now: Callable[[], float]) -> None:
        self._window_bytes = cache_bytes(config)
        self._now = now
        self._held: dict[tuple[str, bytes], _Held] = {}
        self.book: SessionBook[bytes] = SessionBook(
            most_bytes=session_bytes(config),
            most_sessions=MOST_SESSIONS,
            most_of_client=MOST_SESSIONS_OF_CLIENT,
            idle_seconds=IDLE_SECONDS,
        )

    def answer(self, reader: BlockReader, asked: Sequence[Asked]) -> list[Float32 | RpcRefused]:
        """Compute several requests in one go.

        Parameters
        ----------
        reader : BlockReader
            Of the states that all of them name.
        asked : sequence of Asked
            With a seed all of them or none.

        Returns
        -------
        list
            For each the rows, float32 ``[rows, 256]`` (in a sweep, but for the last block, z of the new bytes, float32
            ``[len(new), dim]``), or the refusal ``unknown-session``.
        """
        results: list[Float32 | RpcRefused | None] = [None] * len(asked)
        left = list(range(len(asked)))
        while left:
            # Two requests of one session cannot be computed in the same go: the second builds on the first.
            turn: dict[tuple[str, bytes], int] = {}
            for index in left:
                turn.setdefault((asked[index].client, asked[index].request.session), index)
            indices = list(turn.values())
            for index, result in zip(indices, self._answer(reader, [asked[i] for i in indices]), strict=True):
                results[index] = result
            left = [index for index in left if index not in indices]
        return [result for result in results if result is not None]

    def due(self, asked: Asked) -> int:
        """Positions that answering will take, as far as can be told before: more than are new where a cache is gone.

        Only looks, so it may be asked off the worker: at worst it counts what the worker is just changing.
        """
        request, held = asked.request, self._held.get((asked.client, asked.request.session))
        known = held is not None and held.kind == (*asked.states, request.seed) and request.at > asked.windows[0][0]
        caches, same = (held.caches.copy(), held.same(request)) if held is not None and known else ({}, 0)
        due = 0
        for begin, stop, take in asked.windows:
            length = caches[begin].length if begin in caches else 0
            due += stop - begin - max(0, min(length, same - begin, take))
        return due

    def keep_only(self, alive: Container[bytes]) -> None:
        """Drop sessions that are idle, and those of states whose digests are not in ``alive``."""
        gone = [key for key, held in self._held.items() if not all(digest in alive for digest in held.kind[:2])]
        for key in gone:
            self.book.drop(*key)
        self._forget([*gone, *self.book.expire(self._now())])

    def _answer(self, reader: BlockReader, asked: Sequence[Asked]) -> list[Float32 | RpcRefused]:
        plans = [self._plan(reader, one) for one in asked]
        pieces = [piece for plan in plans if isinstance(plan, list) for piece in plan]
        rows = iter(self._compute(reader, asked, plans, pieces) if pieces else ())
        found: list[Float32 | RpcRefused] = []
        for plan in plans:
            if isinstance(plan, RpcRefused):
                found.append(plan)
            else:
                parts = [next(rows)[piece.skip :] for piece in plan]
                found.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return found

    def _compute(
        self,
        reader: BlockReader,
        asked: Sequence[Asked],
        plans: Sequence[list[_Piece] | RpcRefused],
        pieces: Sequence[_Piece],
    ) -> list[Float32]:
        if asked[0].request.seed is None:
            return reader.extend([(piece.cache, piece.new) for piece in pieces])
        noisy = [one.noise(reader.config.dim) for one, plan in zip(asked, plans, strict=True) if isinstance(plan, list)]
        stepped = reader.extend_sweep([(piece.cache, piece.new, z) for piece, z in zip(pieces, noisy, strict=True)])
        # The next block needs z of every byte that is new, so there are no rows to skip in it.
        for piece, (_, after) in zip(pieces, stepped, strict=True):
            piece.skip = piece.skip if after is None else 0
        return [rows if after is None else after for rows, after in stepped]

    def _plan(self, reader: BlockReader, asked: Asked) -> list[_Piece] | RpcRefused:
        """What to compute for a request, its session brought up to date; or why that is not possible."""
        request, key = asked.request, (asked.client, asked.request.session)
        start, kind = asked.windows[0][0], (*asked.states, request.seed)
        held, text = self._held.get(key), b""
        if request.at > start:
            known = held.known(start, request.at, request.check) if held and held.kind == kind else None
            cached = held.caches.get(start) if held else None
            # z of earlier bytes is not kept: in a sweep nothing before the new bytes can be computed again.
            lacks = request.seed is not None and (cached is None or cached.length < request.at - start)
            if held is None or known is None or lacks:
                return RpcRefused("unknown-session", "this peer does not have the text so far: send it all")
            text = known
        else:
            held = None
        text += request.new
        caches = {begin: cache for begin, cache in held.caches.items() if begin >= start} if held else {}
        same = held.same(request) if held else 0
        for begin, cache in caches.items():
            cache.truncate(max(0, same - begin))
        plan = []
        for begin, stop, take in asked.windows:
            cache = caches.pop(begin) if begin in caches else reader.open()
            cache.truncate(take)
            new = np.frombuffer(text[begin + cache.length - start : stop - start], dtype=np.uint8)
            plan.append(_Piece(cache, new, skip=take - cache.length))
            caches[begin] = cache
        kept = dict(list(caches.items())[-WINDOWS_KEPT:])
        self._held[key] = _Held(kind, start, text, kept)
        size = len(kept) * self._window_bytes + len(text)
        self._forget(self.book.use(*key, size, self._now()))
        return plan

    def _forget(self, keys: Sequence[tuple[str, bytes]]) -> None:
        for key in keys:
            self._held.pop(key, None)
