"""What peers sign during a round: the list, the decisions, the outcome and the votes (docs/protocol.md §6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgpack

from blockswarm.dht.frames import one_line
from blockswarm.dht.identity import Identity
from blockswarm.dht.packing import PackingError
from blockswarm.swarm.contribution import MAX_CONTRIBUTION_BYTES
from blockswarm.swarm.policy.acceptance import quorum
from blockswarm.swarm.policy.parts import MAX_RATE, UNKNOWN, Bandwidth
from blockswarm.swarm.signed import (
    MAX_GUESTS,
    MAX_MEMBERS,
    MAX_SAMPLES,
    MAX_STATEMENT_BYTES,
    Statement,
    StatementError,
    by_position,
    field,
    make,
    open_statement,
    pairs,
    unpack,
)

__all__ = [
    "MAX_GUESTS",
    "MAX_MEMBERS",
    "MAX_REASON",
    "MAX_SAMPLES",
    "MAX_STATEMENT_BYTES",
    "Averaged",
    "Certificate",
    "Counted",
    "Decision",
    "MemberList",
    "Outcome",
    "Statement",
    "StatementError",
    "Vote",
    "make",
    "open_statement",
]

MAX_REASON = 200
"""Characters of a reason for a rejection."""


@dataclass(frozen=True)
class MemberList:
    """Who takes part in one round of one subject: signed by its leader, who stands first."""

    subject: int
    round: int
    parent: bytes
    members: tuple[str, ...]
    samples: dict[str, int]
    reachable: dict[str, bool]
    lines: dict[str, Bandwidth]
    """What each member says of its line; the sizes of the parts follow from it."""
    guests: dict[str, tuple[int, bytes]]
    """Contributors whose updates are brought in: list position of the sponsor, and the signed `Contribution`."""
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
        lines: Mapping[str, Bandwidth] = MappingProxyType({}),
        guests: Mapping[str, tuple[int, bytes]] | None = None,
    ) -> MemberList:
        """Sign a list as its leader; ``samples`` is in list order and begins with the leader."""
        said = {peer_id: lines.get(peer_id, UNKNOWN) for peer_id in samples}
        payload = {
            "subject": subject,
            "round": round_number,
            "parent": parent,
            "members": [
                [peer_id, [count, reachable[peer_id], said[peer_id].up, said[peer_id].down]]
                for peer_id, count in samples.items()
            ],
        }
        if guests:  # a list without any is as it always was
            payload["guests"] = [[peer_id, list(guest)] for peer_id, guest in guests.items()]
        return cls.parse(make("list", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> MemberList:
        """Read and check a list's content; raises `StatementError`."""
        payload = statement.payload
        entries = pairs(payload, "members", list)
        if not entries or len(entries) > MAX_MEMBERS or next(iter(entries)) != statement.signer:
            raise StatementError("a list must begin with the leader who signed it")
        for entry in entries.values():
            if not (len(entry) == 4 and type(entry[0]) is int and 0 <= entry[0] < 2**48 and type(entry[1]) is bool):
                raise StatementError(
                    "a list's entry must hold samples, whether the member can be reached, and its line"
                )
            if not all(type(rate) is int and 0 <= rate <= MAX_RATE for rate in entry[2:]):
                raise StatementError(f"a list's entry must name rates from 0 to {MAX_RATE} bytes/s")
        guests = _guests(payload, entries)
        return cls(
            subject=field(payload, "subject", int),
            round=field(payload, "round", int),
            parent=field(payload, "parent", bytes, length=32),
            members=tuple(entries),
            samples={peer_id: entry[0] for peer_id, entry in entries.items()},
            reachable={peer_id: entry[1] for peer_id, entry in entries.items()},
            lines={peer_id: Bandwidth(*entry[2:]) for peer_id, entry in entries.items()},
            guests=guests,
            statement=statement,
        )


def _guests(payload: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, tuple[int, bytes]]:
    """The contributors of a list, none a member, each with a member as sponsor; raises `StatementError`."""
    if "guests" not in payload:
        return {}
    rows = pairs(payload, "guests", list)
    if len(rows) > MAX_GUESTS or rows.keys() & members.keys():
        raise StatementError(f"a list must have at most {MAX_GUESTS} contributors, and none that is a member")
    for row in rows.values():
        known = len(row) == 2 and type(row[0]) is int and 0 <= row[0] < len(members)
        if not (known and isinstance(row[1], bytes) and len(row[1]) <= MAX_CONTRIBUTION_BYTES):
            raise StatementError("a list's contributor must come with its sponsor and its own signed word")
    if len({row[0] for row in rows.values()}) < len(rows):  # in no group are there more of them than members
        raise StatementError("a list must have no member that brings in two contributors")
    return {peer_id: (row[0], row[1]) for peer_id, row in rows.items()}


@dataclass(frozen=True)
class Decision:
    """Which updates of a group count, with which weight; for all parts, signed by its leader or the next in order."""

    group: bytes
    """Hash of the list; the signer's place in it says which of its groups this is about."""
    weights: dict[str, float]
    rejected: dict[str, str]
    clips: dict[str, float]
    """Factor under 1 on the updates of accepted members that are shortened."""
    parts: dict[int, float]
    """List positions of the reducers that reported; of each, the squared norm of the longest accepted update in what it
    reduces. No mean can be longer."""
    statement: Statement

    @property
    def weight(self) -> float:
        """Weight of the group as a whole."""
        return float(sum(self.weights.values()))

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
        parts: Mapping[int, float],
    ) -> Decision:
        """Sign a decision."""
        payload = {
            "group": group,
            "accepted": [[peer_id, float(weight)] for peer_id, weight in weights.items()],
            "rejected": [[peer_id, reason[:MAX_REASON]] for peer_id, reason in rejected.items()],
            "clips": [[peer_id, float(factor)] for peer_id, factor in clips.items()],
            "parts": [[part, float(norm2)] for part, norm2 in parts.items()],
        }
        return cls.parse(make("decision", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> Decision:
        """Read and check a decision's content; raises `StatementError`."""
        payload = statement.payload
        weights = pairs(payload, "accepted", float)
        if not all(math.isfinite(weight) and weight > 0 for weight in weights.values()):
            raise StatementError("a decision's weights must be above zero and finite")
        clips = pairs(payload, "clips", float)
        if not set(clips) <= set(weights) or not all(0 < factor <= 1 for factor in clips.values()):
            raise StatementError("a decision's clips must be shares of accepted updates")
        parts = dict(by_position(payload, "parts", 1))
        if not all(type(norm2) is float and math.isfinite(norm2) and norm2 >= 0 for norm2 in parts.values()):
            raise StatementError("a decision's parts must come with a squared norm")
        return cls(
            group=field(payload, "group", bytes, length=32),
            weights=weights,
            rejected={
                one_line(peer_id[:MAX_REASON]): one_line(reason[:MAX_REASON])  # for people to read
                for peer_id, reason in pairs(payload, "rejected", str).items()
            },
            clips=clips,
            parts=parts,
            statement=statement,
        )


@dataclass(frozen=True)
class Counted:
    """A group that counts in an outcome."""

    decision: bytes
    """Hash of the group's decision; 32 bytes."""
    weight: float
    """What the decision's weights add up to: samples that the outcome certifies."""


@dataclass(frozen=True)
class Averaged:
    """An averaged part in an outcome."""

    digest: bytes
    """SHA-256 of its encoded bytes."""
    groups: tuple[int, ...]
    """The groups whose means are in it, ascending."""


@dataclass(frozen=True)
class Outcome:
    """Which groups and which averaged parts are in: what the members vote on. A part that is not named is left out."""

    group: bytes
    """Hash of the list."""
    counted: dict[int, Counted]
    """By number of the group."""
    parts: dict[int, Averaged]
    """By list position of the part's owner."""
    statement: Statement

    @classmethod
    def make(
        cls,
        identity: Identity,
        run_digest: bytes,
        *,
        group: bytes,
        counted: Mapping[int, Counted],
        parts: Mapping[int, Averaged],
    ) -> Outcome:
        """Sign an outcome."""
        payload = {
            "group": group,
            "groups": [[number, entry.decision, float(entry.weight)] for number, entry in sorted(counted.items())],
            "parts": [[part, entry.digest, list(entry.groups)] for part, entry in sorted(parts.items())],
        }
        return cls.parse(make("outcome", run_digest, payload, identity))

    @classmethod
    def parse(cls, statement: Statement) -> Outcome:
        """Read and check an outcome's content; raises `StatementError`."""
        payload = statement.payload
        counted = {}
        for number, decision, weight in by_position(payload, "groups", 2):
            if not isinstance(decision, bytes) or len(decision) != 32 or type(weight) is not float:
                raise StatementError("an outcome's group must be a number, a hash and a weight")
            if not (math.isfinite(weight) and weight > 0):
                raise StatementError("an outcome's weights must be above zero and finite")
            counted[number] = Counted(decision, weight)
        parts = {}
        for part, digest, groups in by_position(payload, "parts", 2):
            if not isinstance(digest, bytes) or len(digest) != 32 or not isinstance(groups, list):
                raise StatementError("an outcome's part must be a position, a hash and groups")
            numbers = [number for number in groups if type(number) is int and number in counted]
            if not groups or numbers != groups or sorted(set(numbers)) != numbers:
                raise StatementError("an outcome's part must name groups that count, each once and in order")
            parts[part] = Averaged(digest, tuple(numbers))
        return cls(group=field(payload, "group", bytes, length=32), counted=counted, parts=parts, statement=statement)


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
        samples = field(payload, "samples", int)
        if not 0 <= samples <= MAX_SAMPLES:
            raise StatementError("a vote's samples are out of range")
        return cls(
            group=field(payload, "group", bytes, length=32),
            outcome=field(payload, "outcome", bytes, length=32),
            digest=field(payload, "digest", bytes, length=32),
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
            bundle = unpack(raw)
        except PackingError as error:
            raise StatementError("a certificate that cannot be read") from error
        list_raw, votes_raw = bundle.get("list"), bundle.get("votes")
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
