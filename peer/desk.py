"""The desk: takes the messages of rounds, checks their form, and writes them into the right book."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.peer.allreduce import open_part
from blockswarm.peer.book import EntryRefused, RoundBook
from blockswarm.peer.exchange import off_loop
from blockswarm.peer.forms import (
    CERTIFICATE,
    DECISION,
    FETCH,
    LIST,
    MEET,
    NEWS,
    OUTCOME,
    PART,
    REPORT,
    RESULT,
    SUM,
    VOTE,
)
from blockswarm.peer.giving import Registrar
from blockswarm.peer.heads import ClaimRefused, Head, claim_of, newer_head
from blockswarm.peer.line_meter import LineMeter
from blockswarm.peer.roll import Presence
from blockswarm.peer.shelf import Shelf, latest_round
from blockswarm.peer.states import State
from blockswarm.peer.watched import Watched
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.acceptance import PartReport
from blockswarm.swarm.policy.parts import Bandwidth
from blockswarm.swarm.statements import Decision, MemberList, Outcome, Statement, StatementError, Vote, open_statement

log = logging.getLogger(__name__)

_PARSERS: dict[str, Callable[[Statement], Any]] = {
    "list": MemberList.parse,
    "decision": Decision.parse,
    "outcome": Outcome.parse,
    "vote": Vote.parse,
}


class Desk(Shelf):
    """A `Shelf`, and the handlers that write into its books; made as a shelf is."""

    def __init__(self, own_id: str, manifest: Manifest, clock: Clock, head: Callable[[int], State | None]) -> None:
        super().__init__(own_id, manifest, clock, head)
        self.meter = LineMeter()
        """What this peer's line carries; learns from what is received here."""
        self.on_news: Callable[[int, Head], None] = lambda subject, head: None
        """Called for news of a proven state that outweighs ours."""
        self.is_other_line: Callable[[int, bytes], bool] = lambda subject, digest: False
        """Asked whether a state with fewer samples than ours may be worth a look: it is not of our line."""

    def register(self, host: Registrar) -> None:
        """Offer the round's methods on ``host``."""
        seconds = self._manifest.rounds.seconds
        watched = Watched(host, self._note_refusal)
        watched.register("round.meet", self._meet)
        watched.register("round.news", self._news)
        watched.register("round.list", self._list)
        watched.register("round.part", self._part, max_blob=self._part_size, timeout=seconds)
        watched.register("round.report", self._report)
        watched.register("round.decision", self._decision)
        watched.register("round.sum", self._sum, max_blob=self._sum_size, timeout=seconds)
        watched.register("round.result", self._result, max_blob=self._result_size, timeout=seconds)
        host.register("round.fetch", self._fetch)  # to ask for what is not here is nobody's fault
        watched.register("round.outcome", self._outcome)
        watched.register("round.vote", self._vote)
        host.register("round.certificate", self._certificate)

    def _contribution(self, raw: bytes) -> Contribution:
        try:
            return Contribution.open(raw, self._manifest.digest)
        except StatementError as error:
            raise RpcRefused("bad-statement", str(error)) from None

    def _open(self, request: Request, form: Body) -> tuple[dict[str, Any], RoundBook]:
        body = _read(form, request.body)
        return body, self.book(body["subject"], body["round"])

    def _statement(self, kind: str, raw: bytes) -> Any:
        try:
            return _PARSERS[kind](open_statement(kind, self._manifest.digest, raw))
        except StatementError as error:
            raise RpcRefused("bad-statement", str(error)) from None

    def _enter(self, entry: Callable[[], object]) -> None:
        try:
            entry()
        except EntryRefused as error:
            raise RpcRefused(error.code, str(error)) from None

    # -- meet ------------------------------------------------------------------------------------------------------

    async def _meet(self, request: Request) -> Reply:
        body, book = self._open(request, MEET)
        self._enter(lambda: book.note_heard(request.peer_id))
        if self._clock.now() <= self.times(book.round).meet_end:
            line = Bandwidth(body["up"], body["down"])
            guests = tuple(self._contribution(raw) for raw in body["guests"])
            presence = Presence(body["parent"], body["samples"], body["reachable"], line, guests)
            book.note_presence(request.peer_id, presence)
        head = self._head(book.subject)
        if head is None:
            return Reply({})
        # A caller that may be behind must not have to believe us.
        claim = claim_of(head, proven=head.digest != body["parent"])
        until = self.standing(book.subject).out(book.round).get(request.peer_id)
        return Reply(claim | {"out_until": until} if until else claim)

    async def _list(self, request: Request) -> Reply:
        members = self._statement("list", _read(LIST, request.body)["list"])
        book = self.book(members.subject, members.round)
        if self._clock.now() > self.times(book.round).meet_end:
            raise RpcRefused("late", f"the meeting of round {book.round} is over")
        self._accept_list(book, members)
        return Reply({})

    def _accept_list(self, book: RoundBook, members: MemberList) -> None:
        if out := self.standing(book.subject).out(book.round).keys() & set(members.members):
            raise RpcRefused("kept-out", f"the list names {', '.join(out)}, whose updates had to be refused")
        guests = [self._contribution(raw) for _, raw in members.guests.values()]
        self._enter(lambda: book.accept_list(members, guests))

    async def _news(self, request: Request) -> Reply:
        """Others have made a state without us, or a line that outweighs ours: go over to it before the next round."""
        body = _read(NEWS, request.body)
        subject, apart = body.pop("subject"), body.pop("apart")
        own = self._head(subject)
        if own is None:
            raise RpcRefused("not-mine", f"this peer holds no state of subject {subject}")
        try:
            latest = latest_round(self._manifest, self._clock)
            lighter = apart and self.is_other_line(subject, body["head"])
            read = partial(newer_head, latest_round=latest, lighter=lighter)
            claim = partial(read, self._manifest, own, request.peer_id, body)
            head = await asyncio.to_thread(claim)
        except ClaimRefused as error:
            raise RpcRefused("bad-statement", str(error)) from None
        if head is not None:
            self.on_news(subject, head)
        return Reply({})

    # -- scatter ---------------------------------------------------------------------------------------------------

    def _part_size(self, sender: str, raw: dict[str, Any], length: int) -> int:
        """Check a part before it is read: nothing is read of one that cannot be used, and its sender is noted."""
        body = _read(PART, raw)
        book = self.book(body["subject"], body["round"])
        if book.members is None:  # the leader's own message may still be under way
            self._accept_list(book, self._statement("list", body["list"]))
        elif hashlib.sha256(body["list"]).digest() != book.members.group:
            # Its parts are cut otherwise: by their length an honest sender would look like a faulty one.
            raise RpcRefused("other-group", "the part is of another list")
        begin, end = book.own_slice
        expected = encoded_size(end - begin, self._manifest.averaging.compression)
        self._enter(lambda: book.check_share(sender, body["values"], length, expected, of=body["of"]))
        self.meter.down.begin((book.round, "round.part"), self._clock.now())
        return expected

    async def _part(self, request: Request) -> Reply:
        body, book = self._open(request, PART)
        sender = body["of"] or request.peer_id
        book.bytes_received += len(request.blob)
        self.meter.down.end((book.round, "round.part"), len(request.blob), self._clock.now())
        begin, end = book.own_slice
        values, norm2 = await self._decoded(request.blob, end - begin)
        if self._clock.now() > self._times(book).scatter_end:
            book.refuse_share(sender, "late")
            raise RpcRefused("late", f"the scatter of round {book.round} is over")
        book.add_share(sender, values, norm2)
        return Reply({})

    async def _decoded(self, data: bytes | bytearray | memoryview, count: int) -> tuple[npt.NDArray[np.float32], float]:
        return await off_loop(4 * count, open_part, data, count, self._manifest.averaging.compression)

    # -- decide ----------------------------------------------------------------------------------------------------

    async def _report(self, request: Request) -> Reply:
        body, book = self._open(request, REPORT)
        if book.members is None or book.members.group != body["group"]:
            raise RpcRefused("other-group", "the report is of another group")
        report = {entry["peer"]: PartReport(entry["norm2"], entry["problem"]) for entry in body["senders"]}
        self._enter(lambda: book.add_report(request.peer_id, report))
        return Reply({})

    async def _decision(self, request: Request) -> Reply:
        body, book = self._open(request, DECISION)
        decision = self._statement("decision", body["decision"])
        self._enter(lambda: book.accept_decision(decision))
        return Reply({})

    # -- combine and gather ----------------------------------------------------------------------------------------

    def _learn_decision(self, book: RoundBook, raw: bytes | None) -> None:
        """Take a decision that travels along, while there is none of our own group."""
        if raw is None or book.decision is not None:
            return
        decision = self._statement("decision", raw)
        try:
            book.accept_decision(decision)
        except EntryRefused as error:
            if book.members is None or book.seats.count == 1:
                raise RpcRefused(error.code, str(error)) from None
            # With other groups, what came along is of use even where this decision is not.

    def _check_length(self, book: RoundBook, part: int, length: int) -> int:
        begin, end = book.bounds[part]
        expected = encoded_size(end - begin, self._manifest.averaging.compression)
        if length != expected:
            raise RpcRefused("wrong-length", f"the averaged part has {expected} bytes, not {length}")
        return expected

    def _sum_size(self, sender: str, raw: dict[str, Any], length: int) -> int:
        body = _read(SUM, raw)
        book = self.book(body["subject"], body["round"])
        decision = self._statement("decision", body["decision"])
        self._enter(lambda: book.check_sum(sender, body["part"], decision))
        return self._check_length(book, body["part"], length)

    async def _sum(self, request: Request) -> Reply:
        """A group's mean of the part that we combine."""
        body, book = self._open(request, SUM)
        book.bytes_received += len(request.blob)
        begin, end = book.bounds[body["part"]]
        values, norm2 = await self._decoded(request.blob, end - begin)
        if self._clock.now() > self._times(book).combine_end:
            raise RpcRefused("late", f"the groups of round {book.round} have been combined")
        group = book.seats.group_of[book.require_members().members.index(request.peer_id)]
        self._enter(lambda: book.add_sum(group, values, norm2))
        return Reply({})

    def _result_size(self, sender: str, raw: dict[str, Any], length: int) -> int:
        body = _read(RESULT, raw)
        book = self.book(body["subject"], body["round"])
        self._learn_decision(book, body["decision"])
        self._enter(lambda: book.check_result(sender, body["part"], body["group"], _counted(body)))
        size = self._check_length(book, body["part"], length)
        self.meter.down.begin((book.round, "round.result"), self._clock.now())
        return size

    async def _result(self, request: Request) -> Reply:
        body, book = self._open(request, RESULT)
        data = bytes(request.blob)
        book.bytes_received += len(data)
        self.meter.down.end((book.round, "round.result"), len(data), self._clock.now())
        digest = await off_loop(len(data), lambda: hashlib.sha256(data).digest())
        begin, end = book.bounds[body["part"]]
        _, norm2 = await self._decoded(data, end - begin)
        self._enter(lambda: book.check_mean(body["part"], norm2, _counted(body)))
        book.add_result(body["part"], data, digest, _counted(body))
        return Reply({})

    async def _fetch(self, request: Request) -> Reply:
        body, book = self._open(request, FETCH)
        for part, digest in book.result_hashes.items():
            if digest == body["hash"]:
                return Reply({}, book.results[part])
        statements = [decision.statement for decision in book.decisions.values()]
        if book.outcome is not None:
            statements.append(book.outcome.statement)
        for statement in statements:
            if statement.hash == body["hash"]:
                return Reply({}, statement.raw)
        raise RpcRefused("unknown-part", "nothing with this hash here")

    # -- commit ----------------------------------------------------------------------------------------------------

    async def _outcome(self, request: Request) -> Reply:
        body, book = self._open(request, OUTCOME)
        self._learn_decision(book, body["decision"])
        outcome = self._statement("outcome", body["outcome"])
        self._enter(lambda: book.accept_outcome(outcome))
        return Reply({})

    async def _vote(self, request: Request) -> Reply:
        body, book = self._open(request, VOTE)
        vote = self._statement("vote", body["vote"])
        self._enter(lambda: book.add_vote(vote))
        if body["outcome"] is not None and book.outcome is None and book.decision is not None:
            outcome = self._statement("outcome", body["outcome"])
            self._enter(lambda: book.accept_outcome(outcome))
        return Reply({})

    async def _certificate(self, request: Request) -> Reply:
        _, book = self._open(request, CERTIFICATE)
        return Reply({"certificate": book.certificate.raw if book.certificate else None})


def _counted(body: dict[str, Any]) -> dict[int, bytes]:
    """Group → hash of the decision under which it is in an averaged part."""
    return {entry["group"]: entry["decision"] for entry in body["counted"]}


def _read(form: Body, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return form.read(body)
    except MessageError as error:
        raise RpcRefused("bad-request", str(error)) from None
