"""Certified states and the few of them a peer keeps: what it trains from, and what it serves.

A state is content-addressed: ``(subject, round, digest of its canonical bytes)``. Everyone who committed the same round
holds identical bytes, so a digest is all that two peers must compare.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.clock import Clock
from blockswarm.model.layout import CHUNK_BYTES, chunk_digests, digest_of_chunks
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import StateHead, StateName


@dataclass(frozen=True, eq=False)
class State:
    """One certified state of one subject; immutable. Made by :meth:`make`, which names it by its bytes."""

    subject: int
    """-1 for the embedding, else a block."""
    round: int
    """Round that committed it; 0 is the genesis."""
    values: NDArray[np.float32]
    """The flat state, float32 ``[n]``, read-only."""
    digest: bytes
    """State digest, 32 bytes."""
    samples: int
    """Certified training samples in it since genesis."""
    certificate: bytes
    """Proof that a quorum committed it; empty for the genesis."""
    chunks: tuple[bytes, ...]
    """SHA-256 of each 1 MiB chunk of the values, in order."""
    momentum: NDArray[np.float32] | None = None
    """The outer optimizer's momentum, float32 ``[n]``, read-only, where the manifest has one."""
    momentum_chunks: tuple[bytes, ...] = ()
    """SHA-256 of each 1 MiB chunk of the momentum."""

    @classmethod
    def make(
        cls,
        subject: int,
        round_number: int,
        values: NDArray[np.float32],
        *,
        samples: int,
        certificate: bytes = b"",
        momentum: NDArray[np.float32] | None = None,
    ) -> State:
        """Name a state by its bytes; they become read-only, and a view of something writable is copied first.

        Hashing takes about a second per GB: leave the event loop for large states.
        """
        values = _frozen(values)
        chunks = tuple(chunk_digests(values))
        momentum_chunks: tuple[bytes, ...] = ()
        if momentum is not None:
            momentum = _frozen(momentum)
            momentum_chunks = tuple(chunk_digests(momentum))
        digest = digest_of_chunks(chunks, momentum_chunks)
        return cls(subject, round_number, values, digest, samples, certificate, chunks, momentum, momentum_chunks)

    @classmethod
    def genesis(cls, manifest: Manifest, subject: int) -> State:
        """The state of round 0, computed from the manifest's seed and compared with its digest.

        Raises
        ------
        ManifestError
            If this machine computes something else than the manifest says.
        """
        values = manifest.verify_genesis(subject)
        return cls.make(
            subject, 0, values, samples=0, momentum=np.zeros_like(values) if manifest.has_momentum else None
        )

    @property
    def name(self) -> StateName:
        """Round and digest, as peers list it."""
        return StateName(self.round, self.digest)

    @property
    def head(self) -> StateHead:
        """What a newcomer learns before it fetches the bytes."""
        size = self.values.size
        return StateHead(
            self.round, self.digest, self.samples, size, self.chunks, self.certificate, self.momentum_chunks
        )

    def chunk(self, index: int) -> memoryview:
        """The little-endian float32 bytes of chunk ``index``, not copied where the machine is little-endian.

        The chunks of the values come first, then those of the momentum.
        """
        step = CHUNK_BYTES // 4
        values = self.values
        if self.momentum is not None and index >= len(self.chunks):
            values, index = self.momentum, index - len(self.chunks)
        return values[index * step : (index + 1) * step].astype("<f4", copy=False).data.cast("B")


def _frozen(values: NDArray[np.float32]) -> NDArray[np.float32]:
    if values.flags.writeable and values.base is not None:
        values = values.copy()
    values.flags.writeable = False
    return values


class StateStore:
    """The last certified states of each subject, bounded.

    The newest ``keep`` of a subject stay. Older ones stay while somebody uses them (:meth:`get` counts as use, and so
    does a client that names one as pinned), so that a text being generated goes on from the state it began with, here
    or at a spare holder; never more than ``most`` in all.

    Parameters
    ----------
    clock : Clock
        Tells how long ago a state was used.
    keep : int
        Newest states kept of each subject.
    most : int
        Upper bound per subject, those in use included.
    lease : float
        Seconds a use keeps an older state.
    """

    def __init__(self, clock: Clock, *, keep: int = 3, most: int = 6, lease: float = 60.0) -> None:
        self._clock = clock
        self._keep = keep
        self._most = max(keep, most)
        self._lease = lease
        self._states: dict[int, OrderedDict[bytes, State]] = {}  # subject → digest → state, oldest first
        self._used: dict[bytes, float] = {}

    def commit(self, state: State) -> None:
        """Make ``state`` the head of its subject, and let go of the oldest ones nobody uses."""
        states = self._states.setdefault(state.subject, OrderedDict())
        states[state.digest] = state
        states.move_to_end(state.digest)
        spare = len(states) - self._keep
        for digest in list(states)[: max(0, spare)]:
            in_use = self._used.get(digest, -float("inf")) > self._clock.now() - self._lease
            if not in_use or len(states) > self._most:
                del states[digest]
                self._used.pop(digest, None)

    def head(self, subject: int) -> State | None:
        """The state committed last, or ``None``."""
        states = self._states.get(subject)
        return next(reversed(states.values())) if states else None

    def get(self, subject: int, digest: bytes) -> State | None:
        """The state with this digest if it is still here; asking for it counts as use."""
        states = self._states.get(subject)
        state = states.get(digest) if states else None
        if state is not None:
            self._used[digest] = self._clock.now()
        return state

    def recent(self, subject: int) -> list[State]:
        """All states of ``subject`` that can be served, newest commit first."""
        return list(reversed((self._states.get(subject) or OrderedDict()).values()))

    def forget(self, subject: int) -> None:
        """Drop every state of ``subject``: the peer has moved to another block."""
        for digest in self._states.pop(subject, {}):
            self._used.pop(digest, None)
