"""The bodies of the serving and state calls, typed and capped; each class has ``parse`` and ``to_body``.

==============  ===========================  =====================================================================
method          request                      answer
==============  ===========================  =====================================================================
``manifest``    :class:`ManifestRequest`     blob: canonical manifest, ≤ 64 KiB; the caller verifies its SHA-256
``states``      :class:`StatesRequest`       :class:`StatesReply`
``logprobs``    :class:`LogprobsRequest`     blob: float32 LE ``[rows, 256]``, natural log
``sweep``       :class:`SweepRequest`, blob  ``{"last": bool}``; blob: z of the next block or, from the last block,
                z float32 ``[positions, d]``  log-probabilities ``[rows, 256]``
``state.head``  :class:`HeadRequest`         :class:`StateHead`
``state.chunk`` :class:`ChunkRequest`        blob: one chunk, ≤ 1 MiB
``state.line``  :class:`LineRequest`         blob: msgpack list of certificates, newest first, ≤ 64 and ≤ 1 MiB
==============  ===========================  =====================================================================

Row ``i`` of a window is the distribution of the byte that follows ``window[: i + 1]``; rows before ``take`` are left
out. Windows are concatenated in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blockswarm.model.layout import CHUNK_BYTES, COUNTS, digest_of_chunks
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body, Optional, integer, listed, octets, text

MAX_BLOCKS = 256
MAX_WINDOWS = 64
"""Windows in one serving request."""
MAX_POSITIONS = 4096
"""Bytes of context in one serving request, over all windows: 4 MiB of log-probabilities at most."""
MAX_STATES = 16
"""States a holder lists per subject."""
MAX_ROUND = 2**40
MAX_SAMPLES = 2**53
MAX_CHUNKS = 16_384
MAX_CERTIFICATE_BYTES = 256 * 1024
MAX_VALUES = MAX_CHUNKS * CHUNK_BYTES // 4

DIGEST = octets(32)
"""Reader of a SHA-256."""
SUBJECT = integer(-1, COUNTS)
"""Reader of a subject: -1 the embedding, `COUNTS` the n-gram counts, else a block."""
HELD = integer(0, COUNTS)
"""Reader of what a peer holds: a block, or `COUNTS`."""
BLOCK = integer(0, MAX_BLOCKS - 1)
ROUND = integer(0, MAX_ROUND)
SAMPLES = integer(0, MAX_SAMPLES)
SEED = integer(0, 2**63 - 1)

WINDOWS = listed(octets(least=1, most=MAX_POSITIONS), most=MAX_WINDOWS, least=1)
TAKE = listed(integer(0, MAX_POSITIONS - 1), most=MAX_WINDOWS, least=1)
_STARTS = listed(integer(0, 2**53), most=MAX_WINDOWS, least=1)


@dataclass(frozen=True)
class ManifestRequest:
    """Body of ``manifest``."""

    run_id: str

    _BODY = Body(run_id=text(most=64, least=1))

    @classmethod
    def parse(cls, body: object) -> ManifestRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"run_id": self.run_id}


@dataclass(frozen=True)
class StatesRequest:
    """Body of ``states``."""

    use: tuple[bytes, ...] = ()
    """Digests of states that the caller's sessions are pinned to: a holder keeps them for a while, like those it is
    asked for, so that a spare still has them when its turn comes."""

    _BODY = Body(use=Optional(listed(DIGEST, most=MAX_STATES), ()))

    @classmethod
    def parse(cls, body: object) -> StatesRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(tuple(cls._BODY.read(body)["use"]))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"use": list(self.use)} if self.use else {}


@dataclass(frozen=True)
class StateName:
    """Round and digest of one certified state."""

    round: int
    digest: bytes

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"round": self.round, "digest": self.digest}


_NAMES = listed(Body(round=ROUND, digest=DIGEST), most=MAX_STATES)


@dataclass(frozen=True)
class StatesReply:
    """Answer to ``states``, and the detail of an ``unknown-state`` refusal: what a holder can serve, newest first."""

    block: int
    states: tuple[StateName, ...]
    embedding: tuple[StateName, ...]

    _BODY = Body(block=HELD, states=_NAMES, embedding=_NAMES)

    @classmethod
    def parse(cls, body: object) -> StatesReply:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        values = cls._BODY.read(body)
        return cls(
            block=values["block"],
            states=tuple(StateName(**name) for name in values["states"]),
            embedding=tuple(StateName(**name) for name in values["embedding"]),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {
            "block": self.block,
            "states": [name.to_body() for name in self.states],
            "embedding": [name.to_body() for name in self.embedding],
        }


class Windowed:
    """What all who ask for rows of windows have in common."""

    windows: tuple[bytes, ...]
    take: tuple[int, ...]
    """First row wanted of each window."""

    @property
    def positions(self) -> int:
        """Bytes of context over all windows."""
        return sum(map(len, self.windows))

    @property
    def rows(self) -> int:
        """Rows of log-probabilities in the answer; in a sweep, in the last block's."""
        return self.positions - sum(self.take)


def check_windows(windows: tuple[bytes, ...], **aligned: tuple[int, ...]) -> None:
    """Raise :class:`MessageError` unless windows fit one request, and what is said of each fits them."""
    for name, values in aligned.items():
        if len(values) != len(windows):
            raise MessageError(name, f"has {len(values)} items for {len(windows)} windows")
    positions = sum(len(window) for window in windows)
    if positions > MAX_POSITIONS:
        raise MessageError("windows", f"hold {positions} bytes, at most {MAX_POSITIONS} in one request")
    for index, (window, take) in enumerate(zip(windows, aligned["take"], strict=True)):
        if take >= len(window):
            raise MessageError(f"take[{index}]", f"must be below the window's {len(window)} bytes, is {take}")


@dataclass(frozen=True)
class LogprobsRequest(Windowed):
    """Body of ``logprobs``: one block alone, z = 0."""

    block: int
    digest: bytes
    embedding_digest: bytes
    windows: tuple[bytes, ...]
    take: tuple[int, ...]
    """First row wanted of each window."""

    _BODY = Body(block=BLOCK, digest=DIGEST, embedding_digest=DIGEST, windows=WINDOWS, take=TAKE)

    @classmethod
    def parse(cls, body: object) -> LogprobsRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        values = cls._BODY.read(body)
        check_windows(values["windows"], take=values["take"])
        return cls(**values)

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {
            "block": self.block,
            "digest": self.digest,
            "embedding_digest": self.embedding_digest,
            "windows": list(self.windows),
            "take": list(self.take),
        }


@dataclass(frozen=True)
class SweepRequest(Windowed):
    """Body of ``sweep``: one Euler step of one block. Block 0 draws z itself from ``seed`` and the absolute starts."""

    block: int
    digest: bytes
    embedding_digest: bytes
    windows: tuple[bytes, ...]
    starts: tuple[int, ...]
    """Absolute position in the text of each window's first byte."""
    take: tuple[int, ...]
    seed: int

    _BODY = Body(
        block=BLOCK, digest=DIGEST, embedding_digest=DIGEST, windows=WINDOWS, starts=_STARTS, take=TAKE, seed=SEED
    )

    @classmethod
    def parse(cls, body: object) -> SweepRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        values = cls._BODY.read(body)
        check_windows(values["windows"], take=values["take"], starts=values["starts"])
        return cls(**values)

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {
            "block": self.block,
            "digest": self.digest,
            "embedding_digest": self.embedding_digest,
            "windows": list(self.windows),
            "starts": list(self.starts),
            "take": list(self.take),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class HeadRequest:
    """Body of ``state.head``; without a digest the newest certified state is meant."""

    subject: int
    digest: bytes | None = None

    _BODY = Body(subject=SUBJECT, digest=Optional(DIGEST))

    @classmethod
    def parse(cls, body: object) -> HeadRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"subject": self.subject} if self.digest is None else {"subject": self.subject, "digest": self.digest}


@dataclass(frozen=True)
class StateHead:
    """Answer to ``state.head``: what a state is, before its bytes are fetched."""

    round: int
    digest: bytes
    samples: int
    """Certified samples in this state since genesis."""
    values: int
    """Number of float32 values."""
    chunks: tuple[bytes, ...]
    """SHA-256 of each 1 MiB chunk of the values, in order."""
    certificate: bytes
    momentum: tuple[bytes, ...] = ()
    """The same of the outer momentum, where the run has one; all chunks together hash to ``digest``."""

    _BODY = Body(
        round=ROUND,
        digest=DIGEST,
        samples=SAMPLES,
        values=integer(1, MAX_VALUES),
        chunks=listed(DIGEST, most=MAX_CHUNKS, least=1),
        certificate=octets(most=MAX_CERTIFICATE_BYTES),
        momentum=Optional(listed(DIGEST, most=MAX_CHUNKS), ()),
    )

    @classmethod
    def parse(cls, body: object, *, values: int | None = None, momentum: bool | None = None) -> StateHead:
        """Check a foreign body and that its chunk digests hash to its state digest.

        Parameters
        ----------
        body : object
            The answer's body.
        values : int, optional
            Number of float32 values the manifest says a state of this subject has.
        momentum : bool, optional
            Whether the manifest says that states have an outer momentum.
        """
        head = cls(**cls._BODY.read(body))
        if values is not None and head.values != values:
            raise MessageError("values", f"must be {values}, is {head.values}")
        if len(head.chunks) != -(-head.values * 4 // CHUNK_BYTES):
            raise MessageError("chunks", f"{len(head.chunks)} digests do not fit {head.values} values")
        if momentum is not None and momentum != bool(head.momentum):
            raise MessageError("momentum", "must be there" if momentum else "must not be there")
        if head.chunk_count > MAX_CHUNKS:
            raise MessageError("momentum", f"{head.chunk_count} chunks in all, at most {MAX_CHUNKS}")
        if len(head.momentum) not in (0, len(head.chunks)):
            raise MessageError("momentum", f"{len(head.momentum)} digests do not fit {head.values} values")
        if digest_of_chunks(head.chunks, head.momentum) != head.digest:
            raise MessageError("chunks", "do not hash to the state's digest")
        return head

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        body = {
            "round": self.round,
            "digest": self.digest,
            "samples": self.samples,
            "values": self.values,
            "chunks": list(self.chunks),
            "certificate": self.certificate,
        }
        return body | {"momentum": list(self.momentum)} if self.momentum else body

    @property
    def size(self) -> int:
        """Bytes of the values, and of the momentum after them."""
        return 4 * self.values * (2 if self.momentum else 1)

    @property
    def chunk_count(self) -> int:
        """Chunks in all; those of the values come first."""
        return len(self.chunks) + len(self.momentum)

    def chunk_digest(self, index: int) -> bytes:
        """SHA-256 of chunk ``index``."""
        return (*self.chunks, *self.momentum)[index]

    def chunk_begin(self, index: int) -> int:
        """Where chunk ``index`` begins in the bytes of the state."""
        vector, place = divmod(index, len(self.chunks))
        return 4 * self.values * vector + place * CHUNK_BYTES

    def chunk_bytes(self, index: int) -> int:
        """Size of chunk ``index``; the last one of a vector may be shorter than 1 MiB."""
        return min(CHUNK_BYTES, self.values * 4 - index % len(self.chunks) * CHUNK_BYTES)


@dataclass(frozen=True)
class ChunkRequest:
    """Body of ``state.chunk``."""

    subject: int
    digest: bytes
    index: int

    _BODY = Body(subject=SUBJECT, digest=DIGEST, index=integer(0, MAX_CHUNKS - 1))

    @classmethod
    def parse(cls, body: object) -> ChunkRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"subject": self.subject, "digest": self.digest, "index": self.index}


@dataclass(frozen=True)
class LineRequest:
    """Body of ``state.line``: the certificates of a state and of those before it, backwards."""

    subject: int
    digest: bytes

    _BODY = Body(subject=SUBJECT, digest=DIGEST)

    @classmethod
    def parse(cls, body: object) -> LineRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"subject": self.subject, "digest": self.digest}
