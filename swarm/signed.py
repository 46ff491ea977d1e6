"""Signed payloads: what every statement of a round is wrapped in, and how its fields are read.

A statement is ``msgpack {"k": signer's peer id, "p": payload, "s": signature}``, the payload msgpack too. The signature
covers ``b"blockswarm-" + kind + b"\\0" + run digest + payload``. The peer id contains the public key, so a statement
proves its author wherever it came from. The envelope has one form only: lists, decisions and outcomes are named by the
hash of all their bytes, and who passes one on must not be able to give it another name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from blockswarm.dht import packing
from blockswarm.dht.frames import one_line
from blockswarm.dht.identity import Identity, verify
from blockswarm.errors import BlockswarmError

MAX_STATEMENT_BYTES = 64 * 1024
"""A list of 256 members with their reasons stays under this."""

MAX_MEMBERS = 256
MAX_GUESTS = 32
"""Contributors whose updates enter one round of a subject at most."""

MAX_SAMPLES = 2**53
"""Cumulative certified samples of a state; a float64 counts so far exactly."""


class StatementError(BlockswarmError):
    """A statement is malformed, of another run, or its signature is not its author's."""


@dataclass(frozen=True)
class Statement:
    """A signed payload that has been verified, or that we made ourselves."""

    signer: str
    payload: dict[str, Any]
    raw: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 of the whole statement; 32 bytes."""
        return hashlib.sha256(self.raw).digest()


def _signed_bytes(kind: str, run_digest: bytes, payload: bytes) -> bytes:
    return b"blockswarm-" + kind.encode() + b"\0" + run_digest + payload


def make(kind: str, run_digest: bytes, payload: Mapping[str, Any], identity: Identity) -> Statement:
    """Sign ``payload`` as a statement of ``kind`` (``list``, ``decision``, ``outcome``, ``vote``)."""
    body = msgpack.packb(dict(payload))
    raw = msgpack.packb(
        {"k": identity.peer_id, "p": body, "s": identity.sign(_signed_bytes(kind, run_digest, body))},
    )
    return Statement(identity.peer_id, dict(payload), raw)


def unpack(data: bytes) -> dict[str, Any]:
    """Read the msgpack of a statement, or of a certificate, from strangers; raises `PackingError`."""
    return packing.unpack_map(data, max_bytes=4 * MAX_STATEMENT_BYTES)


def open_statement(kind: str, run_digest: bytes, raw: object) -> Statement:
    """Check size, form and signature of a statement received from anyone.

    Raises
    ------
    StatementError
        With what is wrong; the content is not looked at beyond the envelope.
    """
    if not isinstance(raw, bytes) or len(raw) > MAX_STATEMENT_BYTES:
        raise StatementError(f"a {kind} must be at most {MAX_STATEMENT_BYTES} bytes")
    try:
        envelope = unpack(raw)
        signer, body, signature = envelope.get("k"), envelope.get("p"), envelope.get("s")
        if not (isinstance(signer, str) and isinstance(body, bytes) and isinstance(signature, bytes)):
            raise StatementError(f"a {kind} that cannot be read")
        payload = unpack(body)
    except packing.PackingError as error:
        raise StatementError(f"a {kind} that cannot be read") from error
    if packing.pack({"k": signer, "p": body, "s": signature}) != raw:
        raise StatementError(f"a {kind} in another form than its signer gave it")
    if not verify(signer, _signed_bytes(kind, run_digest, body), signature):
        raise StatementError(f"a {kind} whose signature is not {one_line(signer[:64])}'s")
    return Statement(signer, payload, raw)


def field(payload: Mapping[str, Any], name: str, kind: type, *, length: int | None = None) -> Any:
    """A field of exactly this kind, and bytes of exactly this length; raises `StatementError`."""
    value = payload.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StatementError(f"field {name} is missing or of the wrong kind")
    if isinstance(value, bytes) and length is not None and len(value) != length:
        raise StatementError(f"field {name} must have {length} bytes")
    return value


def pairs(payload: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
    """A field of rows ``[peer id, value]``, each peer once; raises `StatementError`."""
    rows = field(payload, name, list)
    if len(rows) > MAX_MEMBERS + MAX_GUESTS:
        raise StatementError(f"field {name} has more than {MAX_MEMBERS + MAX_GUESTS} entries")
    result: dict[str, Any] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], kind)):
            raise StatementError(f"field {name} has an entry of the wrong kind")
        result[row[0]] = row[1]
    if len(result) != len(rows):
        raise StatementError(f"field {name} names a peer twice")
    return result


def by_position(payload: Mapping[str, Any], name: str, others: int) -> list[Any]:
    """Rows that begin with a list position, each position once, with so many other values; raises `StatementError`."""
    rows: list[Any] = field(payload, name, list)
    if len(rows) > MAX_MEMBERS or not all(isinstance(row, list) and len(row) == 1 + others for row in rows):
        raise StatementError(f"field {name} has an entry of the wrong kind")
    positions = [row[0] for row in rows]
    if any(type(position) is not int or not 0 <= position < MAX_MEMBERS for position in positions):
        raise StatementError(f"field {name} has an entry that is no list position")
    if len(set(positions)) != len(positions):
        raise StatementError(f"field {name} names a position twice")
    return rows
