"""What a faulty replica sends in the place of its messages: bytes as they leave it, made from the right ones.

The replica itself is real and does everything right; only what it sends in one phase is altered on its way out. What it
signs is signed again with its own key, since a signature that does not fit is a fault that ends at the first check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockswarm.dht.identity import Identity
from blockswarm.swarm.codec import Compression, decode, encode
from blockswarm.swarm.signed import make, open_statement

METHODS = {
    ("meet", "member"): "round.meet",
    ("meet", "leader"): "round.list",
    ("scatter", "member"): "round.part",
    ("scatter", "leader"): "round.part",
    ("reduce", "member"): "round.report",
    ("reduce", "leader"): "round.decision",
    ("gather", "member"): "round.result",
    ("gather", "leader"): "round.result",
    ("commit", "member"): "round.vote",
    ("commit", "leader"): "round.outcome",
}
"""The message that a phase is about: what everyone says in it, or what the leader alone does."""

EXCESS = 1 << 20
"""Bytes beyond what a message may have."""

Content = dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A message as it is about to leave."""

    method: str
    body: Content
    blob: bytes = b""


@dataclass(frozen=True)
class Sender:
    """Who alters, and what it needs to know for that."""

    identity: Identity
    run_digest: bytes
    compression: Compression
    last: Mapping[str, Message]
    """What it sent last in rounds before, by method."""
    target_index: int
    """How many others it has told the same before this one."""
    values: int
    """Values that the message's blob encodes."""

    def signed(self, kind: str, raw: bytes, **changes: Any) -> bytes:
        """A statement with other fields, signed by this peer; a field that is None is left out."""
        payload = open_statement(kind, self.run_digest, raw).payload | changes
        content = {key: value for key, value in payload.items() if value is not None}
        return make(kind, self.run_digest, content, self.identity).raw

    def payload(self, kind: str, raw: bytes) -> Content:
        """What a statement says."""
        return open_statement(kind, self.run_digest, raw).payload

    def scaled(self, blob: bytes, factor: float) -> bytes:
        """Encoded values, multiplied."""
        with np.errstate(over="ignore"):
            return encode(decode(blob, self.values, self.compression) * np.float32(factor), self.compression)


Alteration = Callable[[Sender, Message], list[Message]]
"""What leaves instead, in this order; the answer to the last is the sender's answer."""

KINDS = {"round.list": "list", "round.decision": "decision", "round.vote": "vote", "round.outcome": "outcome"}
"""Methods that bring a statement, in the field of the same name as its kind."""


def _with(message: Message, **fields: Any) -> Message:
    return Message(message.method, message.body | fields, message.blob)


def _restated(sender: Sender, message: Message, **changes: Any) -> Message:
    kind = KINDS[message.method]
    return _with(message, **{kind: sender.signed(kind, message.body[kind], **changes)})


def _rows(sender: Sender, message: Message, name: str) -> list[Any]:
    kind = KINDS[message.method]
    rows: list[Any] = sender.payload(kind, message.body[kind])[name]
    return rows


def not_finite(sender: Sender, message: Message) -> list[Message]:
    """NaN where the message has a number that is not whole."""
    nan = math.nan
    match message.method:
        case "round.part" | "round.result":
            return [Message(message.method, message.body, sender.scaled(message.blob, nan))]
        case "round.report":
            return [_with(message, senders=[entry | {"norm2": nan} for entry in message.body["senders"]])]
        case "round.decision":
            accepted = [[peer_id, nan] for peer_id, _ in _rows(sender, message, "accepted")]
            return [_restated(sender, message, accepted=accepted)]
        case "round.outcome":
            groups = [[group, decision, nan] for group, decision, _ in _rows(sender, message, "groups")]
            return [_restated(sender, message, groups=groups)]
        case _:
            return [message]


def wrong_shape(sender: Sender, message: Message) -> list[Message]:
    """Of another vector, about other members or parts, or without a field."""
    match message.method:
        case "round.meet":
            return [_with(message, samples=[message.body["samples"]])]
        case "round.list":
            members = [[peer_id, entry[:1]] for peer_id, entry in _rows(sender, message, "members")]
            return [_restated(sender, message, members=members)]
        case "round.part":
            return [_with(message, values=message.body["values"] + 64)]
        case "round.report":
            stranger = {"peer": Identity.ephemeral().peer_id, "norm2": 1.0, "problem": ""}
            return [_with(message, senders=[*message.body["senders"], stranger])]
        case "round.decision":
            return [_restated(sender, message, parts=[*_rows(sender, message, "parts"), [99, 1.0]])]
        case "round.result":
            return [_with(message, part=99)]
        case "round.vote":
            return [_restated(sender, message, digest=None)]
        case _:
            first = _rows(sender, message, "parts")
            return [_restated(sender, message, parts=[*first, [99, *first[0][1:]]])]


def wrong_length(sender: Sender, message: Message) -> list[Message]:
    """Bytes are missing at the end."""
    match message.method:
        case "round.part" | "round.result":
            return [Message(message.method, message.body, message.blob[:-8])]
        case "round.meet":
            return [_with(message, parent=message.body["parent"][:-1])]
        case "round.report":
            return [_with(message, group=message.body["group"][:-1])]
        case method:
            return [_with(message, **{KINDS[method]: message.body[KINDS[method]][:-8]})]


def oversize(sender: Sender, message: Message) -> list[Message]:
    """More bytes than the message may have."""
    return [Message(message.method, message.body, message.blob + bytes(EXCESS))]


def absurd_norm(sender: Sender, message: Message) -> list[Message]:
    """A thousand times too long; in words about others, an absurd norm or weight."""
    match message.method:
        case "round.part" | "round.result":
            return [Message(message.method, message.body, sender.scaled(message.blob, 1000.0))]
        case "round.report":
            first, *others = (entry for entry in message.body["senders"] if entry["peer"] != sender.identity.peer_id)
            own = [entry for entry in message.body["senders"] if entry["peer"] == sender.identity.peer_id]
            return [_with(message, senders=[first | {"norm2": 1e30}, *others, *own])]
        case "round.decision":
            accepted = [[peer_id, 1e6 * weight] for peer_id, weight in _rows(sender, message, "accepted")]
            return [_restated(sender, message, accepted=accepted)]
        case _:
            return [message]


def wrong_digest(sender: Sender, message: Message) -> list[Message]:
    """A hash of nothing there is; or, of a mean, other bytes to the first than to those after it."""
    nothing = b"\x55" * 32
    match message.method:
        case "round.meet":
            return [_with(message, parent=nothing)]
        case "round.list":
            return [_restated(sender, message, parent=nothing)]
        case "round.part":
            return [_with(message, list=sender.signed("list", message.body["list"], parent=nothing))]
        case "round.report":
            return [_with(message, group=nothing)]
        case "round.decision":
            return [_restated(sender, message, group=nothing)]
        case "round.result":
            blob = sender.scaled(message.blob, 0.5) if sender.target_index == 0 else message.blob
            return [Message(message.method, message.body, blob)]
        case "round.vote":
            return [_restated(sender, message, digest=nothing)]
        case _:
            first, *others = _rows(sender, message, "parts")
            return [_restated(sender, message, parts=[[first[0], nothing, first[2]], *others])]


def stale_base(sender: Sender, message: Message) -> list[Message]:
    """Built on the state before the newest."""
    if message.method == "round.meet":
        return [_with(message, parent=sender.last["round.meet"].body["parent"])]
    return [_restated(sender, message, parent=sender.last["round.meet"].body["parent"])]


def duplicate(sender: Sender, message: Message) -> list[Message]:
    """Said twice, and otherwise the second time; a list names a member twice."""
    match message.method:
        case "round.meet":
            return [message, _with(message, samples=message.body["samples"] + 1)]
        case "round.list":
            members = _rows(sender, message, "members")
            return [_restated(sender, message, members=[*members, members[-1]])]
        case "round.part" | "round.result":
            return [message, Message(message.method, message.body, sender.scaled(message.blob, 0.5))]
        case "round.report":
            return [message, _with(message, senders=[entry | {"norm2": 0.0} for entry in message.body["senders"]])]
        case "round.decision":
            halved = [[peer_id, weight / 2] for peer_id, weight in _rows(sender, message, "accepted")]
            return [message, _restated(sender, message, accepted=halved)]
        case "round.vote":
            return [message, _restated(sender, message, digest=b"\x55" * 32)]
        case _:
            return [message, _restated(sender, message, parts=_rows(sender, message, "parts")[:-1])]


def replay(sender: Sender, message: Message) -> list[Message]:
    """First what it sent in an earlier round, and its old statement as if it were of this round; then the right one."""
    before = sender.last.get(message.method)
    if before is None:
        return [message]
    kind = KINDS.get(message.method)
    restated = [_with(message, **{kind: before.body[kind]})] if kind is not None else []
    return [before, *restated, message]


ALTERATIONS: dict[str, Alteration] = {
    "nan": not_finite,
    "wrong shape": wrong_shape,
    "wrong length": wrong_length,
    "oversize": oversize,
    "absurd norm": absurd_norm,
    "wrong digest": wrong_digest,
    "stale base": stale_base,
    "duplicate": duplicate,
    "replay": replay,
}
"""Faults of what is said. Those of whether it is said at all are with the injection."""
