"""What the demo reports, computed from the volunteers' event logs and the generated text. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockswarm.peer.wording import Event, count

_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class ReplicaLog:
    """What one volunteer logged."""

    block: int
    """Block it owns."""
    events: Sequence[Event]
    """All its events."""
    ended_at: float | None = None
    """Unix seconds when its process ended; ``None`` while it runs."""

    def report(self, number: int) -> Event | None:
        """Its report on round ``number`` of its block."""
        for event in self.events:
            if event.get("event") == "round" and event.get("round") == number and event.get("subject") == self.block:
                return event
        return None

    def lives_at(self, moment: float) -> bool:
        """Whether its process ran at ``moment`` (Unix seconds)."""
        return self.ended_at is None or self.ended_at > moment


@dataclass(frozen=True)
class Score:
    """How the rounds went."""

    rounds: int
    """Rounds counted."""
    rounds_committed: list[int]
    """Committed rounds of every block."""
    participation: float
    """Accepted updates ÷ live replicas, over all blocks and rounds; a round without commit accepted none."""
    commit_rate: float
    """Committed ÷ elapsed rounds, over all blocks."""
    digest_agreement: float
    """Share of committed rounds after which all live replicas of the block report the same digest."""


def rounds_between(genesis: float, seconds: float, begin: float, end: float) -> range:
    """Numbers of the rounds of ``seconds`` that began at or after ``begin`` and closed by ``end`` (Unix seconds)."""
    first = max(1, -int((genesis - begin) // seconds) + 1)
    last = int((end - genesis) // seconds)
    return range(first, last + 1)


def score(logs: Sequence[ReplicaLog], blocks: int, rounds: range, genesis: float, seconds: float) -> Score:
    """Judge ``rounds`` by what every replica that lived at a round's close reported of it."""
    committed = [0] * blocks
    accepted = live = agreed = 0
    for block in range(blocks):
        replicas = [log for log in logs if log.block == block]
        for number in rounds:
            reports = [log.report(number) for log in replicas if log.lives_at(genesis + number * seconds)]
            live += len(reports)
            certified = [report for report in reports if report is not None and report.get("committed")]
            if not certified:
                continue
            committed[block] += 1
            accepted += min(len(reports), max(count(report.get("accepted")) for report in certified))
            digests = {None if report is None else report.get("digest") for report in reports}
            agreed += len(digests) == 1
    elapsed = blocks * len(rounds)
    return Score(
        rounds=len(rounds),
        rounds_committed=committed,
        participation=accepted / live if live else 0.0,
        commit_rate=sum(committed) / elapsed if elapsed else 0.0,
        digest_agreement=agreed / sum(committed) if sum(committed) else 0.0,
    )


def traffic(logs: Iterable[ReplicaLog]) -> tuple[int, int]:
    """Bytes all replicas sent and received in all their rounds, the embedding's included."""
    rounds = [event for log in logs for event in log.events if event.get("event") == "round"]
    sent = sum(event.get("bytes_sent") or 0 for event in rounds)
    return sent, sum(event.get("bytes_received") or 0 for event in rounds)


def words(text: str) -> list[str]:
    """Lower-case words (runs of the letters a–z) of ``text``."""
    return [word.lower() for word in _WORD.findall(text)]


def words_known(generated: Sequence[str], vocabulary: frozenset[str]) -> float:
    """Share of the words in the generated pieces that are in ``vocabulary``.

    A word that a piece ends in was cut off by the byte limit and does not count.
    """
    whole = [word for piece in generated for word in words(re.sub(r"[A-Za-z]+\Z", "", piece))]
    return sum(word in vocabulary for word in whole) / len(whole) if whole else 0.0
