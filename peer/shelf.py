"""The shelf: the books of the rounds that are open, by subject and round."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from blockswarm.clock import Clock
from blockswarm.dht.errors import RpcRefused
from blockswarm.peer.book import RoundBook
from blockswarm.peer.line import Line
from blockswarm.peer.states import State
from blockswarm.swarm.codec import norm_growth
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.contributing import age_of, age_problem, staleness_discount, takes_late_work
from blockswarm.swarm.policy.phases import RoundTimes, round_in_progress, times_of, with_combining
from blockswarm.swarm.policy.robust import growth_of
from blockswarm.swarm.policy.standing import Standing

log = logging.getLogger(__name__)

KEPT_ROUNDS = 2
"""Books of the newest rounds stay, so that a late vote, a missing part or a certificate can still be asked for."""

EARLY_ROUNDS = 1
"""Messages may come for the round after the one in progress: clocks differ a little."""


def current_round(manifest: Manifest, clock: Clock) -> int:
    """The round in progress."""
    return round_in_progress(clock.now(), manifest.genesis_time, manifest.rounds.seconds)


def latest_round(manifest: Manifest, clock: Clock) -> int:
    """The newest round of which anything can come by now."""
    return current_round(manifest, clock) + EARLY_ROUNDS


class Shelf:
    """Books by (subject, round), and what is remembered from round to round.

    Parameters
    ----------
    own_id : str
        This peer's id.
    manifest : Manifest
        The run; gives the moments of every round and the vectors' lengths.
    clock : Clock
        The swarm's time.
    head : callable
        Subject → our newest state of it, or ``None`` while we have none.
    """

    def __init__(self, own_id: str, manifest: Manifest, clock: Clock, head: Callable[[int], State | None]) -> None:
        self._own_id = own_id
        self._manifest = manifest
        self._clock = clock
        self._head = head
        self._books: dict[tuple[int, int], RoundBook] = {}
        self.standings: dict[int, Standing] = {}
        """Of each subject: whose updates had to be refused lately."""
        self.line: Callable[[int], Line | None] = lambda subject: None
        """Our line of a subject: what late work may be based on; without one nobody's base is doubted."""

    def times(self, number: int) -> RoundTimes:
        """The moments of a round."""
        rounds = self._manifest.rounds
        return times_of(number, self._manifest.genesis_time, rounds.seconds, rounds.lengths)

    def book(self, subject: int, number: int) -> RoundBook:
        """The book of a round, made when it is the first to be asked for; `RpcRefused` outside the open rounds."""
        if self._head(subject) is None:
            raise RpcRefused("not-mine", f"this peer holds no state of subject {subject}")
        current = current_round(self._manifest, self._clock)
        if not current - KEPT_ROUNDS <= number <= current + EARLY_ROUNDS:
            raise RpcRefused(
                "other-round", f"round {number} is not open: it is round {current} here", {"time": self._clock.now()}
            )
        for key in [key for key in self._books if key[1] < current - KEPT_ROUNDS]:
            del self._books[key]
        key = (subject, number)
        if key not in self._books:
            values = self._manifest.parameters(subject)
            settings = self._manifest.averaging
            growth = norm_growth(settings.compression) * growth_of(settings.robust)
            self._books[key] = RoundBook(
                subject=subject,
                round=number,
                own_id=self._own_id,
                values=values,
                group_size=self._manifest.rounds.group_size,
                growth=growth,
                guest_problem=self.guest_problem,
                guest_discount=self.guest_discount,
            )
        return self._books[key]

    def _times(self, book: RoundBook) -> RoundTimes:
        """The moments of a book's round, as many groups as its list has."""
        return with_combining(self.times(book.round), book.seats.count if book.members is not None else 1)

    def standing(self, subject: int) -> Standing:
        """Whose updates of ``subject`` had to be refused lately."""
        return self.standings.setdefault(subject, Standing())

    def base_problem(self, subject: int, round_number: int, digest: bytes) -> str:
        """Why a state is none of ours, see `Line.base_problem`."""
        line = self.line(subject)
        return line.base_problem(round_number, digest) if line is not None else ""

    def guest_problem(self, guest: Contribution) -> str:
        """Why a contributor's update cannot enter the round it is signed for, as far as this peer can tell."""
        settings = self._manifest
        if not takes_late_work(settings.rounds.late, settings.averaging.robust):
            return "stale base: this run takes no late work"
        if guest.peer_id in self.standing(guest.subject).out(guest.round):
            return "kept out"
        problem = age_problem(guest.round, guest.base_round)
        return problem or self.base_problem(guest.subject, guest.base_round, guest.base)

    def guest_discount(self, guest: Contribution) -> float:
        """The share of its samples that a contributor's update weighs: the same for all, from what it signed."""
        return staleness_discount(age_of(guest.round, guest.base_round), self._manifest.rounds.carry_discount)

    def _note_refusal(self, peer_id: str, method: str, body: dict[str, Any], refusal: RpcRefused) -> None:
        """Write down who sent what had to be refused: in the round that it names, else in the one in progress."""
        books = [book for (subject, _), book in self._books.items() if body.get("subject", subject) == subject]
        named = [book for book in books if book.round == body.get("round")]
        current = current_round(self._manifest, self._clock)
        for book in named or [book for book in books if book.round == current]:
            if book.note_refusal(peer_id, f"refused its {method}: {refusal.text}"):
                log.info("round %d: refused %s of %s: %s", book.round, method, peer_id, refusal.text)
