"""Targets: whole conversations with a peer's desks. A message may be well-formed and still come at a bad moment."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from blockswarm.clock import ManualClock
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.packing import PackingError, pack, unpack
from blockswarm.dht.rpc import Reply
from blockswarm.errors import BlockswarmError
from blockswarm.peer import chain
from blockswarm.peer.desk import Desk
from blockswarm.peer.forwarding import serve_forwarding
from blockswarm.peer.giving import serve_manifest, serve_states
from blockswarm.peer.hosting import PIECE_BYTES, Hosting
from blockswarm.peer.roll import Presence
from blockswarm.peer.serving import ServingDesk
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.codec import encode
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import EMBEDDING
from blockswarm.swarm.messages import ChunkRequest, HeadRequest, LogprobsRequest, StatesRequest, SweepRequest
from blockswarm.swarm.policy.grouping import Seats
from blockswarm.swarm.session_messages import SessionRequest, text_check
from blockswarm.swarm.statements import Averaged, Counted, Decision, MemberList, Outcome, Vote
from tests.fuzz.streams import loop
from tests.fuzz.target import IDENTITIES, MIB, NOW, Target, manifest
from tests.methods import Methods

OWN, LEADER, THIRD, STRANGER = IDENTITIES
ROUND, BLOCK = 3, 1
MOST_MESSAGES = 24

PATIENCE = 0.01
"""Seconds for one message. Those that wait for others are given up on, as callers do."""


class Alone(Methods):
    """What a host would offer that reaches nobody."""

    def connected_peers(self) -> list[str]:
        """See `blockswarm.dht.host.Host.connected_peers`."""
        return [STRANGER.peer_id]

    async def call(self, peer_id: str, method: str, body: Any, **about: Any) -> Reply:
        """See `blockswarm.dht.host.Host.call`: the next peer is gone."""
        raise RpcError("unreachable", "gone")

    async def takes(self, peer_id: str, method: str, body: dict[str, Any], blob: bytes) -> bool:
        """Whether a message was taken; any other failure than a refusal is raised."""
        try:
            async with asyncio.timeout(PATIENCE):
                reply = await self.ask(peer_id, method, body, blob)
        except TimeoutError:
            return False
        except RpcRefused as refusal:
            assert refusal.code and len(refusal.text) < 2000
            pack(refusal.detail)
            return False
        pack(reply.body)
        return True


def _talk(make: Callable[[], Alone], data: bytes) -> bool:
    """Give a peer one message after another: a msgpack list of ``[who, method, body, blob]``."""
    try:
        messages = unpack(data, max_bytes=MIB)
    except PackingError:
        return False
    if not isinstance(messages, list):
        return False
    methods, taken = make(), 0
    names = sorted(methods.methods)
    for message in messages[:MOST_MESSAGES]:
        match message:
            case [int(who), str(method), dict(body), bytes(blob)]:
                name = method if method in methods.methods else names[len(method) % len(names)]
                peer = IDENTITIES[1 + who % 3].peer_id
                taken += loop().run_until_complete(methods.takes(peer, name, body, blob))
    return taken > 0


@functools.cache
def _state(subject: int) -> State:
    return State.genesis(manifest(), subject)


# -- rounds ------------------------------------------------------------------------------------------------------------


def _meeting() -> Alone:
    """A replica that waits to be listed for round 3."""
    desk = Desk(OWN.peer_id, manifest(), ManualClock(NOW), {BLOCK: _state(BLOCK), EMBEDDING: _state(EMBEDDING)}.get)
    desk.book(BLOCK, ROUND).note_presence(OWN.peer_id, Presence(_state(BLOCK).digest, 16, True))
    methods = Alone()
    desk.register(methods)
    Hosting(manifest(), ManualClock(NOW), desk).register(methods)
    return methods


def round_messages(data: bytes) -> bool:
    """Messages of a round in any order, from members and strangers: taken or refused."""
    return _talk(_meeting, data)


def _round_seeds() -> list[bytes]:
    run, parent = manifest().digest, _state(BLOCK).digest
    where = {"subject": BLOCK, "round": ROUND}
    members = MemberList.make(
        LEADER,
        run,
        subject=BLOCK,
        round_number=ROUND,
        parent=parent,
        samples={LEADER.peer_id: 16, OWN.peer_id: 16},
        reachable={LEADER.peer_id: True, OWN.peer_id: True},
    )
    weights = {LEADER.peer_id: 16.0}
    decision = Decision.make(LEADER, run, group=members.group, weights=weights, rejected={}, clips={}, parts={0: 9.0})
    counted = {0: Counted(decision.statement.hash, decision.weight)}
    averaged = {0: Averaged(b"h" * 32, (0,))}
    outcome = Outcome.make(LEADER, run, group=members.group, counted=counted, parts=averaged)
    vote = Vote.make(LEADER, run, group=members.group, outcome=b"o" * 32, digest=b"d" * 32, samples=32)
    meet = [0, "round.meet", where | {"parent": parent, "samples": 16, "reachable": True, "up": 0, "down": 0}, b""]
    named = [0, "round.list", {"list": members.statement.raw}, b""]
    report = [0, "round.report", where | {"group": members.group, "senders": []}, b""]
    decided = [0, "round.decision", where | {"decision": decision.statement.raw}, b""]
    proposed = [0, "round.outcome", where | {"outcome": outcome.statement.raw}, b""]
    voted = [0, "round.vote", where | {"vote": vote.statement.raw, "outcome": outcome.statement.raw}, b""]
    asked = [0, "round.certificate", where, b""]
    fetched = [0, "round.fetch", where | {"hash": b"h" * 32}, b""]
    inside = [{"group": 0, "decision": decision.statement.hash}]
    result = where | {"group": members.group, "part": 0, "counted": inside, "decision": decision.statement.raw}
    part = where | {"list": members.statement.raw, "values": manifest().parameters(BLOCK)}
    return [
        pack([meet, named, report, decided, proposed, voted, asked]),
        pack([named, [0, "round.part", part, bytes(100)], report, fetched]),
        pack([named, decided, [0, "round.result", result, bytes(100)], fetched]),
        _two_groups(),
        _late_work(),
    ]


def _late_work() -> bytes:
    """A contributor announces an update, sends its one piece, signs it and asks."""
    size = manifest().parameters(BLOCK)
    data = encode(np.full(size, 1e-3, dtype=np.float32), manifest().averaging.compression)
    name, state = hashlib.sha256(data).digest(), _state(BLOCK)
    word = Contribution.make(
        STRANGER,
        manifest().digest,
        subject=BLOCK,
        round_number=ROUND,
        base_round=0,
        base=state.digest,
        samples=16,
        values=name,
    )
    opened = {"subject": BLOCK, "base_round": 0, "base": state.digest, "base_samples": 0, "certificate": b""}
    return pack(
        [
            [2, "contribute.open", opened | {"values": size, "hash": name}, b""],
            [2, "contribute.piece", {"subject": BLOCK, "hash": name, "index": 0}, data[:PIECE_BYTES]],
            [2, "contribute.sign", {"contribution": word.statement.raw}, b""],
            [2, "contribute.outcome", {"subject": BLOCK, "round": ROUND}, b""],
        ]
    )


def _two_groups() -> bytes:
    """A list of four, whose second group sends us its mean of the part that we own."""
    run, size = manifest().digest, manifest().parameters(BLOCK)
    signers = (LEADER, THIRD, OWN, STRANGER)
    where = {"subject": BLOCK, "round": ROUND}
    members = MemberList.make(
        LEADER,
        run,
        subject=BLOCK,
        round_number=ROUND,
        parent=_state(BLOCK).digest,
        samples=dict.fromkeys((signer.peer_id for signer in signers), 16),
        reachable=dict.fromkeys((signer.peer_id for signer in signers), True),
    )
    seats = Seats(size, (True,) * 4, 2)
    first, ours = (end - begin for begin, end in (seats.bounds[0], seats.bounds[2]))
    decision = Decision.make(
        THIRD,
        run,
        group=members.group,
        weights={THIRD.peer_id: 16.0},
        rejected={STRANGER.peer_id: "late"},
        clips={},
        parts={1: 9.0, 3: 9.0},
    )
    mean, averaged = (encode(np.full(count, 1e-3, dtype=np.float32), "int8") for count in (ours, first))
    inside = [{"group": 1, "decision": decision.statement.hash}]
    result = where | {"group": members.group, "part": 0, "counted": inside, "decision": None}
    return pack(
        [
            [0, "round.list", {"list": members.statement.raw}, b""],
            [1, "round.decision", where | {"decision": decision.statement.raw}, b""],
            [2, "round.sum", where | {"part": 2, "decision": decision.statement.raw}, mean],
            [0, "round.result", result, averaged],
            [2, "round.fetch", where | {"hash": decision.statement.hash}, b""],
        ]
    )


# -- serving -----------------------------------------------------------------------------------------------------------


async def _idle(work: Callable[[], Any]) -> Any:
    """A worker that has ended: what is asked for here is everything before the computation."""
    raise BlockswarmError("the worker has ended")


def _holder() -> Alone:
    """A holder of two states of block 1."""
    store = StateStore(ManualClock(NOW))
    for subject in (BLOCK, EMBEDDING):
        store.commit(_state(subject))
    methods = Alone()
    serve_manifest(methods, manifest())
    serve_states(methods, store)
    serving = ServingDesk(manifest(), store, _idle, ManualClock(NOW), block=BLOCK)
    serving.register(methods)
    chain.ChainDesk(manifest(), serving, methods, lambda block: ()).register(methods)
    serve_forwarding(methods)
    return methods


def serving_requests(data: bytes) -> bool:
    """Requests for predictions and states: refused before anything is computed, or given to the worker."""
    with patch.object(chain, "EARLY_SECONDS", PATIENCE):  # what is kept for a while must not pile up over many runs
        return _talk(_holder, data)


def _serving_seeds() -> list[bytes]:
    states = _state(BLOCK).digest, _state(EMBEDDING).digest
    sweep = SweepRequest(BLOCK, *states, (b"abc", b"de"), (0, 4), (1, 0), 7).to_body()
    calls: list[tuple[str, dict[str, Any], bytes]] = [
        ("manifest", {"run_id": manifest().run_id}, b""),
        ("states", StatesRequest(states).to_body(), b""),
        ("state.head", HeadRequest(BLOCK).to_body(), b""),
        ("state.chunk", ChunkRequest(EMBEDDING, states[1], 0).to_body(), b""),
        ("logprobs", LogprobsRequest(BLOCK, *states, (b"abc", b"de"), (1, 0)).to_body(), b""),
        (
            "session.logprobs",
            SessionRequest(b"n" * 16, BLOCK, *states, at=0, new=b"abc", first=1, check=b"").to_body(),
            b"",
        ),
        ("session.logprobs", SessionRequest(b"n" * 16, BLOCK, *states, 2, b"c", 2, text_check(b"ab")).to_body(), b""),
        ("sweep", sweep, bytes(4 * 5 * manifest().model.dim)),
    ]
    token, z = b"t" * 16, bytes(4 * 5 * manifest().model.dim)
    waiting = {"sweep": sweep, "token": token, "draw": {"temperature": 0.7, "top_k": 3}}
    chained = [
        ("chain.z", {"token": token, "positions": 5}, z),
        ("chain", waiting, b""),
        ("chain.z", {"token": token, "positions": 4}, z),
    ]
    session = SessionRequest(b"n" * 16, BLOCK, *states, at=0, new=b"abcde", first=4, check=b"", seed=7).to_body()
    chained += [
        ("chain.z", {"token": b"u" * 16, "positions": 5}, z),
        ("chain", {"session": session, "token": b"u" * 16}, b""),
    ]
    forwarded = {"to": STRANGER.peer_id, "method": "states", "body": {}, "max_blob": 0}
    return [pack([[0, *call] for call in talk]) for talk in (calls, chained, [calls[0], ("forward", forwarded, b"")])]


TARGETS = [
    Target("round-messages", round_messages, _round_seeds, memory=16 * MIB, longest=256 << 10),
    Target("serving-requests", serving_requests, _serving_seeds, memory=16 * MIB, longest=256 << 10),
]
