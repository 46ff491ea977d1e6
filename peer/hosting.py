"""The sponsor's side of contributions: takes slow volunteers' updates, and keeps them for a round.

See docs/protocol.md §6.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.peer.allreduce import open_part
from blockswarm.peer.desk import Desk
from blockswarm.peer.exchange import Guest, off_loop
from blockswarm.peer.forms import CONTRIBUTE_OPEN, CONTRIBUTE_OUTCOME, CONTRIBUTE_PIECE, CONTRIBUTE_SIGN
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.round import RoundResult
from blockswarm.peer.shelf import current_round
from blockswarm.swarm.certified import check_certificate
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.contributing import age_problem, room_for_guests, takes_late_work
from blockswarm.swarm.statements import StatementError

PIECE_BYTES = 64 * 1024
"""An update comes in pieces of so many bytes, the last one shorter: 10 s each at 50 kbit/s."""

IDLE_SECONDS = 120.0
"""An update of which nothing has come for so long is dropped, and its place is free."""

SLOWER_AT_ONCE = 1.25
"""From one round to the next our line counts as at most this many times slower."""


@dataclass
class _Hosted:
    """One contributor's update, as far as it has come."""

    base_round: int
    base: bytes
    hash: bytes
    size: int
    touched: float
    data: bytearray = field(default_factory=bytearray)
    whole: bool = False
    """All of it is here, hashes to its name and decodes to finite values."""
    done: bool = False
    """It is in a certified state: it never comes again."""
    signed: Contribution | None = None
    taken: set[int] = field(default_factory=set)
    """Rounds that it was brought into."""
    outcomes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By round: what came of it."""


class Hosting:
    """Foreign updates of this peer's subjects, bounded in number, size and time.

    Parameters
    ----------
    manifest : Manifest
        The run.
    clock : Clock
        The swarm's time.
    desk : Desk
        Knows who is kept out, and where the rounds stand.
    """

    def __init__(self, manifest: Manifest, clock: Clock, desk: Desk) -> None:
        self._manifest = manifest
        self._clock = clock
        self._desk = desk
        self._hosted: dict[tuple[int, str], _Hosted] = {}
        self.upload_seconds: dict[int, float] = {}
        """By subject: time that sending one whole encoded update takes here, as measured last."""

    def register(self, host: Registrar) -> None:
        """Offer to bring in others' updates."""
        host.register("contribute.open", self._open)
        host.register("contribute.piece", self._piece, max_blob=self._piece_size)
        host.register("contribute.sign", self._sign)
        host.register("contribute.outcome", self._outcome)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def guests(self, subject: int, number: int) -> tuple[Guest, ...]:
        """The updates to bring into a round: whole, and signed for it."""
        self._drop_old()
        there = [entry for (of, _), entry in self._hosted.items() if of == subject and entry.whole]
        guests: list[Guest] = []
        for entry in there:
            if entry.signed is not None and entry.signed.round == number and len(guests) < self.room(subject):
                entry.taken.add(number)
                guests.append(Guest(entry.signed, bytes(entry.data)))
        return tuple(guests)

    def room(self, subject: int) -> int:
        """How many updates we can bring in beside our own."""
        return room_for_guests(self.upload_seconds.get(subject, 0.0), self._manifest.rounds.scatter)

    def settle(self, result: RoundResult, guests: tuple[Guest, ...]) -> None:
        """Note what came of a round for those that were brought into it; what is in is let go of."""
        if result.upload_seconds > 0:
            # A busy moment makes it look slow; the line is as good as it was lately.
            before = self.upload_seconds.get(result.subject, result.upload_seconds)
            self.upload_seconds[result.subject] = min(result.upload_seconds, SLOWER_AT_ONCE * before)
        for guest in guests:
            peer_id = guest.contribution.peer_id
            entry = self._hosted.get((result.subject, peer_id))
            if entry is None or entry.hash != guest.contribution.values:
                continue
            counted = result.state is not None and peer_id in result.contributed
            reason = "" if counted else result.rejected.get(peer_id) or result.problems.get(peer_id) or result.failure
            # Once it was listed, others may have certified it without us.
            known = result.state is not None or peer_id not in result.guests
            entry.outcomes[result.round] = {
                "known": known,
                "counted": counted,
                "reason": (reason or "not listed")[:200],
            }
            if counted:
                entry.data, entry.whole, entry.signed, entry.done = bytearray(), False, None, True

    # -- messages --------------------------------------------------------------------------------------------------

    async def _open(self, request: Request) -> Reply:
        """Whether an update may come, and from which byte on; nothing of it is read before this is answered."""
        body = checked(CONTRIBUTE_OPEN.read, request.body)
        subject, sender = body["subject"], request.peer_id
        rounds, number = self._manifest.rounds, current_round(self._manifest, self._clock)
        self._desk.book(subject, number)  # refuses what is none of our subjects
        if not takes_late_work(rounds.late, self._manifest.averaging.robust):
            raise RpcRefused("no-late-work", "this run takes no late work")
        if sender in self._desk.standing(subject).out(number):
            raise RpcRefused("kept-out", "your updates had to be refused")
        if body["values"] != (values := self._manifest.parameters(subject)):
            raise RpcRefused("wrong-shape", f"the vector has {values} values, not {body['values']}")
        if problem := age_problem(number + 1, body["base_round"]):
            raise RpcRefused("stale-base", problem)
        await asyncio.to_thread(self._check_base, subject, body)
        if problem := self._desk.base_problem(subject, body["base_round"], body["base"]):
            raise RpcRefused("unknown-base", problem)
        known = self._hosted.get((subject, sender))
        if known is not None and known.hash == body["hash"] and known.base == body["base"]:
            if known.done:
                raise RpcRefused("counted", "this update is in a certified state already")
            return Reply({"have": len(known.data)})
        self._drop_old()
        others = sum(
            of == subject and peer_id != sender and not entry.done for (of, peer_id), entry in self._hosted.items()
        )
        if others >= self.room(subject):
            raise RpcRefused("busy", f"no room for an update beside this member's own and {others} others")
        size = encoded_size(values, self._manifest.averaging.compression)
        entry = _Hosted(body["base_round"], body["base"], body["hash"], size, self._clock.now())
        self._hosted[subject, sender] = entry
        return Reply({"have": 0})

    def _check_base(self, subject: int, body: dict[str, Any]) -> None:
        if body["base_round"] == 0:
            if body["base"] != self._manifest.genesis_digest(subject):
                raise RpcRefused("unknown-base", "unknown base: not the genesis of this run")
            return
        try:
            check_certificate(
                self._manifest,
                subject,
                round_number=body["base_round"],
                digest=body["base"],
                samples=body["base_samples"],
                raw=body["certificate"],
            )
        except StatementError as error:
            raise RpcRefused("unknown-base", f"unknown base: {error}") from None

    def _entry(self, subject: int, sender: str, name: bytes) -> _Hosted:
        entry = self._hosted.get((subject, sender))
        if entry is None or entry.hash != name:
            raise RpcRefused("unknown-update", "no update of this name was announced, or it was dropped since")
        return entry

    def _piece_size(self, sender: str, raw: dict[str, Any], length: int) -> int:
        body = checked(CONTRIBUTE_PIECE.read, raw)
        entry = self._entry(body["subject"], sender, body["hash"])
        begin = body["index"] * PIECE_BYTES
        expected: int = min(PIECE_BYTES, entry.size - begin)
        if entry.whole or entry.done or begin != len(entry.data) or length != expected:
            raise RpcRefused(
                "wrong-piece", f"{len(entry.data)} of {entry.size} bytes are here", {"have": len(entry.data)}
            )
        return expected

    async def _piece(self, request: Request) -> Reply:
        body = checked(CONTRIBUTE_PIECE.read, request.body)
        subject = body["subject"]
        entry = self._entry(subject, request.peer_id, body["hash"])
        if body["index"] * PIECE_BYTES != len(entry.data):  # the same piece came twice at a time
            raise RpcRefused("wrong-piece", f"{len(entry.data)} of {entry.size} bytes are here")
        entry.data += request.blob
        entry.touched = self._clock.now()
        if len(entry.data) == entry.size:
            if problem := await off_loop(4 * self._manifest.parameters(subject), self._problem, subject, entry):
                self._hosted.pop((subject, request.peer_id), None)
                self._desk.standing(subject).note(
                    current_round(self._manifest, self._clock), (), {request.peer_id: problem}
                )
                raise RpcRefused("refused", problem)
            entry.whole = True
        return Reply({"have": len(entry.data)})

    def _problem(self, subject: int, entry: _Hosted) -> str:
        data = bytes(entry.data)
        if hashlib.sha256(data).digest() != entry.hash:
            return "wrong hash: not the update that was announced"
        _, norm2 = open_part(data, self._manifest.parameters(subject), self._manifest.averaging.compression)
        return "" if math.isfinite(norm2) else "not finite"

    async def _sign(self, request: Request) -> Reply:
        """The contributor's word for one round; it must come before the round's training ends."""
        raw = checked(CONTRIBUTE_SIGN.read, request.body)["contribution"]
        try:
            word = Contribution.open(raw, self._manifest.digest)
        except StatementError as error:
            raise RpcRefused("bad-statement", str(error)) from None
        if word.peer_id != request.peer_id:
            raise RpcRefused("bad-statement", "the contribution is signed by somebody else")
        entry = self._entry(word.subject, request.peer_id, word.values)
        if not entry.whole or (word.base_round, word.base) != (entry.base_round, entry.base):
            raise RpcRefused(
                "unknown-update", "the update that this is about is not here, or was based on another state"
            )
        if self._clock.now() > self._desk.times(word.round).train_end:
            raise RpcRefused("late", f"the training of round {word.round} is over")
        if problem := self._desk.guest_problem(word):
            raise RpcRefused("refused", problem)
        entry.signed, entry.touched = word, self._clock.now()
        return Reply({})

    async def _outcome(self, request: Request) -> Reply:
        body = checked(CONTRIBUTE_OUTCOME.read, request.body)
        entry = self._hosted.get((body["subject"], request.peer_id))
        if entry is None:
            return Reply({"known": False, "counted": False, "reason": "no update of yours is here"})
        entry.touched = self._clock.now()
        outcome = entry.outcomes.get(body["round"])
        if outcome is None:
            never = body["round"] not in entry.taken and self._clock.now() > self._desk.times(body["round"]).close
            reason = "its sponsor could not bring it in" if never else "the round is not over here"
            outcome = {"known": never, "counted": False, "reason": reason}
        return Reply(outcome)

    def _drop_old(self) -> None:
        number, now = current_round(self._manifest, self._clock), self._clock.now()
        patience = max(IDLE_SECONDS, 3 * self._manifest.rounds.seconds)
        for key, entry in list(self._hosted.items()):
            if now - entry.touched > patience or age_problem(number, entry.base_round):
                del self._hosted[key]
