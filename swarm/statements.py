"""What peers sign during a round: the list, the decision, the outcome and the votes (docs/protocol.md §6).

A statement is ``msgpack {"k": signer's peer id, "p": payload, "s": signature}``, the payload msgpack too. The signature
covers ``b"blockswarm-" + kind + b"\\0" + run digest + payload``. The peer id contains the public key, so a statement
proves its author wherever it came from. The envelope has one form only: lists, decisions and outcomes are named by the
hash of all their bytes, and who passes one on must not be able to give it another name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from blockswarm.dht.frames import one_line
from blockswarm.dht.identity import Identity, verify
from blockswarm.dht.packing import pack, unpack
from blockswarm.errors import BlockswarmError
from blockswarm.swarm.policy.acceptance import quorum

MAX_STATEMENT_BYTES = 64 * 1024
"""A list of 256 members with their reasons stays under this."""

MAX_MEMBERS = 256
MAX_REASON = 200
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


def _unpack(data: bytes) -> Any:
    return unpack(data, max_bytes=4 * MAX_STATEMENT_BYTES)


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
        envelope = _unpack(raw)
        signer, body, signature = envelope["k"], envelope["p"], envelope["s"]
        payload = _unpack(body)
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise StatementError(f"a {kind} that cannot be read") from error
    if not (isinstance(signer, str) and isinstance(body, bytes) and isinstance(signature, bytes)):
        raise StatementError(f"a {kind} that cannot be read")
    if pack({"k": signer, "p": body, "s": signature}) != raw:
        raise StatementError(f"a {kind} in another form than its signer gave it")
    if not isinstance(payload, dict) or not all(isinstance(name, str) for name in payload):
        raise StatementError(f"a {kind} that cannot be read")
    if not verify(signer, _signed_bytes(kind, run_digest, body), signature):
        raise StatementError(f"a {kind} whose signature is not {one_line(signer[:64])}'s")
    return Statement(signer, payload, raw)


def _field(payload: Mapping[str, Any], name: str, kind: type, *, length: int | None = None) -> Any:
    value = payload.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StatementError(f"field {name} is missing or of the wrong kind")
    if isinstance(value, bytes) and length is not None and len(value) != length:
        raise StatementError(f"field {name} must have {length} bytes")
    return value


def _pairs(payload: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
    rows = _field(payload, name, list)
    if len(rows) > MAX_MEMBERS:
        raise StatementError(f"field {name} has more than {MAX_MEMBERS} entries")
    result: dict[str, Any] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], kind)):
            raise StatementError(f"field {name} has an entry of the wrong kind")
        result[row[0]] = row[1]
    if len(result) != len(rows):
        raise StatementError(f"field {name} names a peer twice")
    return result


@dataclass(frozen=True)
class MemberList:
    """Who takes part in one round of one subject: signed by its leader, who stands first."""

    subject: int
    round: int
    parent: bytes
    members: tuple[str, ...]
    samples: dict[str, int]
    reachable: dict[str, bool]
    statement: Statement

    @property
    def group(self) -> bytes:
        """The group's id: the hash of the list; 32 bytes."""
        return self.statement.hash

    @classmethod
    def make(
        cls,
        identity: Identity,
        run_digest: bytes,
        *,
        subject: int,
        round_number: int,
        parent: bytes,
        samples: Mapping[str, int],
        reachable: Mapping[str, bool],
    ) -> MemberList:
        """Sign a list as its leader; ``samples`` is in list order and begins with the leader."""
        payload = {
            "subject": subject,
            "round": round_number,
            "parent": parent,
            "members": [[peer_id, [count, reachable[peer_id]]] for peer_id, count in samples.items()],
        }
        return cls.parse(make("list", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> MemberList:
        """Read and check a list's content; raises `StatementError`."""
        payload = statement.payload
        entries = _pairs(payload, "members", list)
        if not entries or len(entries) > MAX_MEMBERS or next(iter(entries)) != statement.signer:
            raise StatementError("a list must begin with the leader who signed it")
        for entry in entries.values():
            if not (len(entry) == 2 and type(entry[0]) is int and 0 <= entry[0] < 2**48 and type(entry[1]) is bool):
                raise StatementError("a list's entry must hold samples and whether the member can be reached")
        return cls(
            subject=_field(payload, "subject", int),
            round=_field(payload, "round", int),
            parent=_field(payload, "parent", bytes, length=32),
            members=tuple(entries),
            samples={peer_id: entry[0] for peer_id, entry in entries.items()},
            reachable={peer_id: entry[1] for peer_id, entry in entries.items()},
            statement=statement,
        )


@dataclass(frozen=True)
class Decision:
    """Which updates count and with which weight; one for all parts, signed by the leader or the next in order."""

    group: bytes
    weights: dict[str, float]
    rejected: dict[str, str]
    clips: dict[str, float]
    """Factor under 1 on the updates of accepted members that are shortened."""
    parts: tuple[int, ...]
    statement: Statement

    @classmethod
    def make(
        cls,
        identity: Identity,
        run_digest: bytes,
        *,
        group: bytes,
        weights: Mapping[str, float],
        rejected: Mapping[str, str],
        clips: Mapping[str, float],
        parts: tuple[int, ...],
    ) -> Decision:
        """Sign a decision; ``parts`` are the list positions of the reducers that reported."""
        payload = {
            "group": group,
            "accepted": [[peer_id, float(weight)] for peer_id, weight in weights.items()],
            "rejected": [[peer_id, reason[:MAX_REASON]] for peer_id, reason in rejected.items()],
            "clips": [[peer_id, float(factor)] for peer_id, factor in clips.items()],
            "parts": list(parts),
        }
        return cls.parse(make("decision", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> Decision:
        """Read and check a decision's content; raises `StatementError`."""
        payload = statement.payload
        weights = _pairs(payload, "accepted", float)
        if not all(math.isfinite(weight) and weight > 0 for weight in weights.values()):
            raise StatementError("a decision's weights must be above zero and finite")
        clips = _pairs(payload, "clips", float)
        if not set(clips) <= set(weights) or not all(0 < factor <= 1 for factor in clips.values()):
            raise StatementError("a decision's clips must be shares of accepted updates")
        parts = _field(payload, "parts", list)
        if len(parts) > MAX_MEMBERS or any(type(part) is not int or not 0 <= part < MAX_MEMBERS for part in parts):
            raise StatementError("a decision's parts must be list positions")
        return cls(
            group=_field(payload, "group", bytes, length=32),
            weights=weights,
            rejected={
                one_line(peer_id[:MAX_REASON]): one_line(reason[:MAX_REASON])  # for people to read
                for peer_id, reason in _pairs(payload, "rejected", str).items()
            },
            clips=clips,
            parts=tuple(parts),
            statement=statement,
        )


@dataclass(frozen=True)
class Outcome:
    """Which averaged parts are in, by hash: what the members vote on. A part without a hash is left out."""

    group: bytes
    decision: bytes
    parts: dict[int, bytes]
    statement: Statement

    @classmethod
    def make(
        cls, identity: Identity, run_digest: bytes, *, group: bytes, decision: bytes, parts: Mapping[int, bytes]
    ) -> Outcome:
        """Sign an outcome; ``parts`` maps list position to the SHA-256 of the part's encoded bytes."""
        rows = [[part, digest] for part, digest in sorted(parts.items())]
        return cls.parse(
            make("outcome", run_digest, {"group": group, "decision": decision, "parts": rows}, identity),
        )

    @classmethod
    def parse(cls, statement: Statement) -> Outcome:
        """Read and check an outcome's content; raises `StatementError`."""
        payload = statement.payload
        rows = _field(payload, "parts", list)
        parts: dict[int, bytes] = {}
        for row in rows[: MAX_MEMBERS + 1]:
            if not (isinstance(row, list) and len(row) == 2 and type(row[0]) is int and isinstance(row[1], bytes)):
                raise StatementError("an outcome's part must be a position and a hash")
            if row[0] in parts or not 0 <= row[0] < MAX_MEMBERS or len(row[1]) != 32:
                raise StatementError("an outcome's part must be a position and a hash")
            parts[row[0]] = row[1]
        return cls(
            group=_field(payload, "group", bytes, length=32),
            decision=_field(payload, "decision", bytes, length=32),
            parts=parts,
            statement=statement,
        )


@dataclass(frozen=True)
class Vote:
    """One member's word that applying one outcome to the parent gives one digest; at most one per round."""

    group: bytes
    outcome: bytes
    digest: bytes
    samples: int
    statement: Statement

    @classmethod
    def make(
        cls, identity: Identity, run_digest: bytes, *, group: bytes, outcome: bytes, digest: bytes, samples: int
    ) -> Vote:
        """Sign a vote; ``samples`` is the new state's cumulative certified count."""
        payload = {"group": group, "outcome": outcome, "digest": digest, "samples": samples}
        return cls.parse(make("vote", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> Vote:
        """Read and check a vote's content; raises `StatementError`."""
        payload = statement.payload
        samples = _field(payload, "samples", int)
        if not 0 <= samples <= MAX_SAMPLES:
            raise StatementError("a vote's samples are out of range")
        return cls(
            group=_field(payload, "group", bytes, length=32),
            outcome=_field(payload, "outcome", bytes, length=32),
            digest=_field(payload, "digest", bytes, length=32),
            samples=samples,
            statement=statement,
        )

    @property
    def ballot(self) -> tuple[bytes, bytes, int]:
        """What must be equal for votes to add up."""
        return (self.outcome, self.digest, self.samples)


@dataclass(frozen=True)
class Certificate:
    """Proof of a commit: the list, and equal votes of more than half of it."""

    members: MemberList
    digest: bytes
    samples: int
    voters: tuple[str, ...]
    raw: bytes

    @property
    def lone(self) -> bool:
        """Whether one replica alone made this round."""
        return len(self.members.members) == 1

    @classmethod
    def make(cls, members: MemberList, votes: list[Vote], run_digest: bytes) -> Certificate:
        """Bundle a list and its agreeing votes."""
        raw = msgpack.packb({"list": members.statement.raw, "votes": [vote.statement.raw for vote in votes]})
        return cls.open(raw, run_digest)

    @classmethod
    def open(cls, raw: object, run_digest: bytes) -> Certificate:
        """Check a certificate received from anyone: every signature, one ballot, distinct members, a quorum.

        Raises
        ------
        StatementError
            With what is wrong.
        """
        if not isinstance(raw, bytes) or len(raw) > 4 * MAX_STATEMENT_BYTES:
            raise StatementError(f"a certificate must be at most {4 * MAX_STATEMENT_BYTES} bytes")
        try:
            bundle = _unpack(raw)
            list_raw, votes_raw = bundle["list"], bundle["votes"]
        except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
            raise StatementError("a certificate that cannot be read") from error
        if not isinstance(votes_raw, list) or not 1 <= len(votes_raw) <= MAX_MEMBERS:
            raise StatementError("a certificate that cannot be read")
        members = MemberList.parse(open_statement("list", run_digest, list_raw))
        votes = [Vote.parse(open_statement("vote", run_digest, vote)) for vote in votes_raw]
        voters = {vote.statement.signer for vote in votes}
        if any(vote.group != members.group or vote.ballot != votes[0].ballot for vote in votes):
            raise StatementError("a certificate whose votes differ")
        if not voters <= set(members.members) or len(voters) < quorum(len(members.members)):
            raise StatementError("a certificate without a quorum of its list")
        return cls(members, votes[0].digest, votes[0].samples, tuple(sorted(voters)), raw)
