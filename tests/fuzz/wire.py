"""Targets: messages, records of the directory, and what peers sign."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from blockswarm import swarm
from blockswarm.dht import frames, records
from blockswarm.dht.errors import FrameError, RecordError
from blockswarm.dht.packing import PackingError, pack, unpack, unpack_map
from blockswarm.dht.records import BlockRecord, ProgressRecord, Record, RunRecord, open_sealed, seal
from blockswarm.model.layout import digest_of_chunks
from blockswarm.peer import forms, forwarding, heads
from blockswarm.swarm import chain_messages, counts_messages, messages, session_messages, statements
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body
from blockswarm.swarm.statements import (
    Averaged,
    Certificate,
    Counted,
    Decision,
    MemberList,
    Outcome,
    Statement,
    StatementError,
    Vote,
    open_statement,
)
from tests.fuzz.target import IDENTITIES, MIB, NOW, Target, same

OWNER, SECOND, THIRD, STRANGER = IDENTITIES
D1, D2 = b"d" * 32, b"e" * 32
RUN = b"r" * 32
"""Digest of the run that statements are of."""


# -- packing and frames ------------------------------------------------------------------------------------------------


def packing(data: bytes) -> bool:
    """What is unpacked packs to one form, which unpacks to itself."""
    try:
        value = unpack(data, max_bytes=frames.MAX_HEADER)
    except PackingError:
        return False
    once = pack(value)
    assert len(once) <= len(data) + 4 * data.count(b"\xca"), "the canonical form is the shortest, float32 aside"
    assert pack(unpack(once, max_bytes=2 * frames.MAX_HEADER)) == once
    return True


def request(data: bytes) -> bool:
    """A request that is read is one that can be sent."""
    try:
        head = frames.decode_request(data)
    except FrameError:
        return False
    if head.version != frames.PROTOCOL_VERSION:
        assert (head.method, head.body, head.blob_length) == ("", {}, 0)
        return True
    sent = frames.encode_request(head.method, head.body, run=head.run, blob_length=head.blob_length)
    assert frames.header_length(sent[:4]) == len(sent) - 4
    again = frames.decode_request(sent[4:])
    assert (again.version, again.run, again.method) == (head.version, head.run, head.method)
    assert again.blob_length == head.blob_length and same(again.body, head.body)
    return True


def reply(data: bytes) -> bool:
    """A reply or refusal that is read is one that can be sent; what a refusal says fits one line."""
    try:
        head = frames.decode_reply(data)
    except FrameError:
        return False
    assert len(head.text) <= frames.MAX_TEXT and (head.text + head.code).isprintable()
    if head.ok:
        sent = frames.encode_reply(head.body, blob_length=head.blob_length)
    else:
        sent = frames.encode_error(head.code, head.text, head.body)
    again = frames.decode_reply(sent[4:])
    assert (again.ok, again.code, again.text) == (head.ok, head.code, head.text)
    assert again.blob_length == head.blob_length and same(again.body, head.body)
    return True


def frame_seeds() -> list[bytes]:
    """Headers of calls as peers send them."""
    return [
        frames.encode_request("hello", {"addrs": ["/ip4/127.0.0.1/tcp/1"]})[4:],
        frames.encode_request("state.chunk", {"subject": 0, "digest": D1, "index": 3}, run=RUN, blob_length=7)[4:],
        frames.encode_request("x", {"a": [None, True, -1, 2.5, "y", b"z", {"b": []}]}, version=2)[4:],
    ]


def reply_seeds() -> list[bytes]:
    """Headers of answers."""
    return [
        frames.encode_reply({"block": 1, "states": [{"round": 1, "digest": D1}]}, blob_length=1000)[4:],
        frames.encode_error("busy", "come back", {"retry_after": 0.5})[4:],
    ]


# -- bodies ------------------------------------------------------------------------------------------------------------

_MESSAGES = [
    importlib.import_module(f"blockswarm.swarm.{module.name}")
    for module in pkgutil.iter_modules(swarm.__path__)
    if module.name.endswith("messages")
]

_PARSERS: list[Callable[[Any], Any]] = [
    *(
        kind.parse
        for module in _MESSAGES
        for _, kind in sorted(inspect.getmembers(module, inspect.isclass))
        if kind.__module__ == module.__name__ and hasattr(kind, "parse")
    ),
    *(form.read for module in (forms, heads, forwarding) for form in vars(module).values() if isinstance(form, Body)),
]
"""Every typed body there is, those of serving, of states and of rounds; the first byte of an input chooses one."""


def body(data: bytes) -> bool:
    """A body that is read is equal to what it is sent as."""
    try:
        value = unpack_map(data[1:], max_bytes=frames.MAX_HEADER)
        read = _PARSERS[data[0] % len(_PARSERS)](value)
    except (PackingError, MessageError, IndexError) as error:
        assert not isinstance(error, IndexError) or not data
        return False
    if not isinstance(read, dict):
        assert same(type(read).parse(read.to_body()).to_body(), read.to_body())
    return True


def body_seeds() -> list[bytes]:
    """One body of each kind that is easily made; the others grow from them."""
    name = messages.StateName(3, D1)
    chunks = (D1, D2)
    windows: dict[str, Any] = {
        "block": 1,
        "digest": D1,
        "embedding_digest": D2,
        "windows": (b"abc", b"d"),
        "take": (1, 0),
    }
    made = [
        messages.ManifestRequest("fuzz-0123456789ab"),
        messages.StatesRequest((D1, D2)),
        messages.StatesReply(1, (name,), (name,)),
        messages.LogprobsRequest(**windows),
        messages.SweepRequest(**windows, starts=(0, 70), seed=5),
        messages.HeadRequest(0, D1),
        messages.StateHead(3, digest_of_chunks(chunks), 64, 300_000, chunks, b"signed"),
        messages.ChunkRequest(-1, D1, 1),
        messages.LineRequest(-1, D1),
        counts_messages.CountsRequest(D1, (b"abc", b"d"), (1, 0)),
        chain_messages.ChainRequest(
            messages.SweepRequest(**windows, starts=(0, 70), seed=5),
            b"t" * 16,
            SECOND.peer_id,
            chain_messages.Draw(0.7, 5, 0.9),
        ),
        chain_messages.ChainRequest(
            session_messages.SessionRequest(b"n" * 16, 1, D1, D2, 2, b"c", 2, b"checksum", seed=5),
            b"t" * 16,
            SECOND.peer_id,
        ),
        chain_messages.ZArrives(b"t" * 16, 4),
        chain_messages.ZArrives(b"t" * 16, 4, narrow=True),
        session_messages.SessionRequest(b"n" * 16, 1, D1, D2, 0, b"abc", 1, b""),
    ]
    places = {
        parse.__self__: index
        for index, parse in enumerate(_PARSERS)
        if inspect.isclass(getattr(parse, "__self__", None))
    }
    typed = [bytes([places[type(one)]]) + pack(one.to_body()) for one in made]
    where = {"subject": 0, "round": 3}
    bodies: list[dict[str, Any]] = [
        where | {"parent": D1, "samples": 16, "reachable": True, "up": 0, "down": 0},
        where | {"group": D1, "senders": [{"peer": OWNER.peer_id, "norm2": 1.5, "problem": "late"}]},
        where | {"part": 0, "hash": D1},
        {"head": D1, "head_round": 2, "head_samples": 64, "certificate": b"signed"},
        {"to": SECOND.peer_id, "method": "states", "body": {"use": [D1]}, "max_blob": 7},
    ]
    first = len(places)
    others = (bytes([first + at]) + pack(one) for one in bodies for at in range(len(_PARSERS) - first))
    return [*typed, *(one for one in others if body(one))]


# -- records -----------------------------------------------------------------------------------------------------------


def record(data: bytes) -> bool:
    """A sealed record that is believed has one form: sealed again it is the same bytes."""
    try:
        opened = open_sealed(data, now=NOW)
    except RecordError:
        return False
    key, again = records.open_timeless(data)
    assert again == opened
    if opened.peer_id == OWNER.peer_id and key == opened.key():
        assert seal(OWNER, opened) == data
    return True


def signed_record(data: bytes) -> bool:
    """The same where the owner itself signs what no honest software would: signatures do not make content good."""
    try:
        fields = unpack_map(data, max_bytes=records.MAX_RECORD)
    except PackingError:
        return False
    key = records.runs_key()
    if fields.get("kind") in ("block", "progress"):
        subject = fields.get("block" if fields["kind"] == "block" else "subject")
        key = f"{fields.get('run_id')}.{fields['kind']}.{subject}"
    signed = b"blockswarm-record-1\0" + key.encode() + b"\0" + data
    return record(pack({"k": key, "p": data, "s": OWNER.sign(signed)}))


def _records() -> list[Record]:
    where = f"/ip4/192.0.2.7/tcp/4001/p2p/{OWNER.peer_id}"
    who: dict[str, Any] = {"run_id": "fuzz-0123456789ab", "peer_id": OWNER.peer_id, "issued": NOW, "expires": NOW + 60}
    return [
        BlockRecord(**who, block=1, state="TRAINING", round=3, digest=D1, embedding_digest=D2, addrs=(where,)),
        BlockRecord(**who, block=0, state="OFFLINE", samples_per_second=1.5),
        RunRecord(**who, name="fuzz", digest=D1, addrs=(where,)),
        ProgressRecord(**who, subject=-1, round=3, digest=D1, accepted=(OWNER.peer_id,), heldout_ce=1.25),
    ]


def record_seeds() -> list[bytes]:
    """Sealed records of all kinds."""
    return [*(seal(OWNER, one) for one in _records()), seal(OWNER, _records()[0], shard=3)]


def payload_seeds() -> list[bytes]:
    """What stands in them."""
    return [unpack_map(seal(OWNER, one), max_bytes=records.MAX_RECORD)["p"] for one in _records()]


# -- statements --------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[[Statement], Any]] = {
    "list": MemberList.parse,
    "decision": Decision.parse,
    "outcome": Outcome.parse,
    "vote": Vote.parse,
    "contribution": Contribution.parse,
}


def statement(data: bytes) -> bool:
    """An envelope that is believed is the one its signer made: it has one form, and so one hash."""
    opened = None
    for kind in _KINDS:
        try:
            opened = open_statement(kind, RUN, data)
        except StatementError:
            continue
        envelope = unpack_map(data, max_bytes=statements.MAX_STATEMENT_BYTES)
        assert pack(envelope) == data and envelope.keys() == {"k", "p", "s"}
    return opened is not None


def signed_statement(data: bytes) -> bool:
    """Content of any kind, signed by a member: read or refused, and nothing unprintable for people."""
    kind = list(_KINDS)[data[0] % len(_KINDS)] if data else "list"
    signature = OWNER.sign(b"blockswarm-" + kind.encode() + b"\0" + RUN + data[1:])
    try:
        read = _KINDS[kind](open_statement(kind, RUN, pack({"k": OWNER.peer_id, "p": data[1:], "s": signature})))
    except StatementError as error:
        assert str(error).isprintable()
        return False
    if isinstance(read, Decision):
        assert all((peer + reason).isprintable() for peer, reason in read.rejected.items())
    return True


def certificate(data: bytes) -> bool:
    """A certificate holds what a quorum of its list has signed."""
    try:
        opened = Certificate.open(data, RUN)
    except StatementError:
        return False
    assert 2 * len(opened.voters) > len(opened.members.members) and set(opened.voters) <= set(opened.members.members)
    return True


def _group() -> tuple[MemberList, list[Vote]]:
    signers = (OWNER, SECOND, THIRD)
    members = MemberList.make(
        OWNER,
        RUN,
        subject=0,
        round_number=3,
        parent=D1,
        samples={signer.peer_id: 16 for signer in signers},
        reachable={signer.peer_id: True for signer in signers},
    )
    return members, [Vote.make(s, RUN, group=members.group, outcome=D1, digest=D2, samples=48) for s in signers[:2]]


def statement_seeds() -> list[bytes]:
    """One statement of each kind."""
    members, votes = _group()
    peers = members.members
    decision = Decision.make(
        OWNER,
        RUN,
        group=members.group,
        weights={peers[0]: 16.0, peers[1]: 8.0},
        rejected={peers[2]: "late"},
        clips={peers[1]: 0.5},
        parts={0: 4.0, 1: 9.0},
    )
    outcome = Outcome.make(
        OWNER,
        RUN,
        group=members.group,
        counted={0: Counted(decision.statement.hash, decision.weight)},
        parts={0: Averaged(D1, (0,)), 1: Averaged(D2, (0,))},
    )
    late = Contribution.make(STRANGER, RUN, subject=0, round_number=3, base_round=1, base=D1, samples=16, values=D2)
    brought = MemberList.make(
        OWNER,
        RUN,
        subject=0,
        round_number=3,
        parent=D1,
        samples=members.samples,
        reachable=members.reachable,
        guests={late.peer_id: (1, late.statement.raw)},
    )
    return [one.statement.raw for one in (members, decision, outcome, votes[0], late, brought)]


def content_seeds() -> list[bytes]:
    """What stands in them, with a first byte that names the kind."""
    found = (unpack_map(raw, max_bytes=statements.MAX_STATEMENT_BYTES)["p"] for raw in statement_seeds())
    kinds = (0, 1, 2, 3, 4, 0)
    return [bytes([kind]) + payload for kind, payload in zip(kinds, found, strict=True)]


def certificate_seeds() -> list[bytes]:
    """A certificate of three replicas."""
    members, votes = _group()
    return [Certificate.make(members, votes, RUN).raw]


TARGETS = [
    Target("packing", packing, lambda: [*frame_seeds(), *reply_seeds()], memory=8 * MIB),
    Target("request", request, frame_seeds, memory=8 * MIB),
    Target("reply", reply, reply_seeds, memory=8 * MIB),
    Target("body", body, body_seeds, memory=8 * MIB),
    Target("record", record, record_seeds),
    Target("signed-record", signed_record, payload_seeds),
    Target("statement", statement, statement_seeds, memory=8 * MIB),
    Target("signed-statement", signed_statement, content_seeds, memory=8 * MIB),
    Target("certificate", certificate, certificate_seeds, memory=8 * MIB),
]
