"""What a soak shows, from what its volunteers reported: pure, so that its own rules can be tested in milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockswarm.peer.wording import Event

LATE_SECONDS = 2.0
"""Nobody may end a round later than this after its close."""

SETTLED_ROUNDS = 100
"""Rounds after which a process's memory should be flat."""


@dataclass(frozen=True)
class Round:
    """One round as the driver saw it."""

    number: int
    close: float
    """Unix seconds."""
    fault: str
    """What was wrong with one volunteer in it; empty for nothing."""
    victims: frozenset[str]
    """Its name, and for a line that was cut the name at the other end, too."""
    absent: frozenset[str]
    """Names of volunteers that were down, stopped, or not back yet when it closed."""
    named: frozenset[str] = frozenset()
    """Peers one of whom somebody's report should name."""
    may_fork: bool = False
    """Whether the fault can make two certified states, of which the heavier wins (docs/protocol.md §10)."""

    @property
    def kind(self) -> str:
        """``fault``: something was done; ``after``: nothing, but some were still away; ``calm``: neither."""
        if self.fault:
            return "fault"
        return "after" if self.absent else "calm"


@dataclass
class Verdict:
    """The figures of a soak."""

    rounds: Counter[str] = field(default_factory=Counter)
    """Rounds by kind."""
    committed: Counter[str] = field(default_factory=Counter)
    """Of them, those in which everyone who was there, and whom nothing was done to, committed one state."""
    faults: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    """Rounds that committed, by fault."""
    forks: list[str] = field(default_factory=list)
    """Rounds of which two states were committed."""
    allowed_forks: list[str] = field(default_factory=list)
    """The same, where the fault can make them."""
    digests: set[str] = field(default_factory=set)
    """All states that were committed."""
    late: list[str] = field(default_factory=list)
    """Reports that came too late after the close."""
    unnamed: list[str] = field(default_factory=list)
    """Rounds with a bad update whose sender no report named."""


def judge(rounds: Sequence[Round], events: Mapping[str, Sequence[Event]]) -> Verdict:
    """Weigh what was reported.

    Parameters
    ----------
    rounds : sequence of Round
        In order.
    events : mapping
        Volunteer's name → everything it reported, of all its lives.
    """
    verdict = Verdict()
    reports = {name: _by_round(found) for name, found in events.items()}
    may_fork = {entry.number for entry in rounds if entry.may_fork}
    for number, where in _forks(events.values()):
        (verdict.allowed_forks if number in may_fork else verdict.forks).append(where)
    for entry in rounds:
        there = [name for name in events if name not in entry.absent and name not in entry.victims]
        found = [reports[name].get(entry.number) for name in there]
        digests = {event["digest"] for event in found if event and event["committed"]}
        whole = bool(found) and all(event and event["committed"] for event in found) and len(digests) == 1
        verdict.rounds[entry.kind] += 1
        verdict.committed[entry.kind] += whole
        verdict.digests |= digests
        if entry.fault:
            verdict.faults[entry.fault] += 1
            verdict.survived[entry.fault] += whole
        late = [event["time"] - entry.close for event in found if event]
        verdict.late += [f"round {entry.number}: {by:.1f} s" for by in late if by > LATE_SECONDS]
        if entry.named and not any(event and entry.named & _named_by(event) for event in found):
            verdict.unnamed.append(f"round {entry.number}: {entry.fault}")
    return verdict


def _named_by(event: Event) -> set[str]:
    return {*event["rejected"], *event["problems"]}


def _by_round(events: Iterable[Event]) -> dict[int, Event]:
    return {event["round"]: event for event in events if event["event"] == "round" and event["subject"] == 0}


def _forks(all_events: Iterable[Iterable[Event]]) -> list[tuple[int, str]]:
    committed: dict[tuple[int, int], set[str]] = {}
    for events in all_events:
        for event in events:
            if event["event"] == "round" and event["committed"]:
                committed.setdefault((event["round"], event["subject"]), set()).add(event["digest"])
    return [
        (number, f"round {number} of subject {subject}")
        for (number, subject), found in committed.items()
        if len(found) > 1
    ]


def growth(samples: Sequence[tuple[int, float]]) -> float | None:
    """By how much of itself memory grew after `SETTLED_ROUNDS`, last tenth of the samples against the first.

    Parameters
    ----------
    samples : sequence of (round, bytes)
        Of one process that lived throughout.

    Returns
    -------
    float or None
        0.1 for a tenth; ``None`` when there are too few samples to tell.
    """
    settled = [size for number, size in samples if number >= SETTLED_ROUNDS]
    if len(settled) < 10:
        return None
    tenth = len(settled) // 10
    first, last = sum(settled[:tenth]) / tenth, sum(settled[-tenth:]) / tenth
    return last / first - 1.0


def share(part: int, whole: int) -> float | None:
    """``part / whole``; None of nothing."""
    return part / whole if whole else None


def figures(
    verdict: Verdict, memory: Mapping[str, Sequence[tuple[int, float]]], left_over: Sequence[str]
) -> dict[str, Any]:
    """The report, ready for JSON: shares of 1, memory in bytes."""
    return {
        "rounds": dict(verdict.rounds),
        "commit_rate": {kind: share(verdict.committed[kind], count) for kind, count in verdict.rounds.items()},
        "faults": {
            fault: {"rounds": count, "commit_rate": share(verdict.survived[fault], count)}
            for fault, count in sorted(verdict.faults.items())
        },
        "states_committed": len(verdict.digests),
        "forks": verdict.forks,
        "forks_by_a_line_cut_in_the_meeting": verdict.allowed_forks,
        "late_reports": verdict.late,
        "bad_updates_nobody_named": verdict.unnamed,
        "memory": {
            name: {"first": samples[0][1], "last": samples[-1][1], "growth": growth(samples)}
            for name, samples in memory.items()
            if samples
        },
        "left_over": list(left_over),
    }


def failures(report: Mapping[str, Any]) -> list[str]:
    """What of the report breaks a promise; empty for a soak that passed."""
    told = [f"fork: {where}" for where in report["forks"]]
    for kind, least in (("calm", 0.95), ("fault", 0.8)):
        rate = report["commit_rate"].get(kind)
        if rate is not None and rate < least:
            told.append(f"{rate:.3f} of the {kind} rounds committed, not {least}")
    told += [f"late: {what}" for what in report["late_reports"]]
    told += [f"nobody named the sender: {what}" for what in report["bad_updates_nobody_named"]]
    told += [
        f"memory of {name} grew by {found['growth']:.0%}"
        for name, found in report["memory"].items()
        if found["growth"] is not None and found["growth"] > 0.1
    ]
    return told + [f"left over: {what}" for what in report["left_over"]]
