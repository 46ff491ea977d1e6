"""What counts as a passed soak."""

from __future__ import annotations

from typing import Any

from tests.soak.judge import SETTLED_ROUNDS, Round, failures, figures, growth, judge
from tests.soak.record import markdown

CLOSE = 100.0


def report(number: int, digest: str = "same", **changes: Any) -> dict[str, Any]:
    event = {"event": "round", "subject": 0, "round": number, "digest": digest, "committed": True}
    return {**event, "rejected": {}, "problems": {}, "time": CLOSE + 0.1, **changes}


def passed(number: int, fault: str = "", victim: str = "", absent: tuple[str, ...] = ()) -> Round:
    named = frozenset({f"id-of-{victim}"} if fault.startswith("nan") else ())
    return Round(number, CLOSE, fault, frozenset({victim} - {""}), frozenset(absent), named)


def test_a_round_counts_when_all_that_were_there_committed_one_state() -> None:
    rounds = [passed(1), passed(2, "nan scatter member", "c"), passed(3, absent=("c",))]
    named: dict[str, Any] = {"rejected": {"id-of-c": "not finite"}}
    events = {
        "a": [report(1), report(2, **named), report(3)],
        "b": [report(1), report(2, **named), report(3)],
        "c": [report(1), report(2, committed=False)],
    }
    verdict = judge(rounds, events)
    assert verdict.rounds == verdict.committed == {"calm": 1, "fault": 1, "after": 1}
    assert failures(figures(verdict, {}, [])) == []


def test_a_round_that_one_of_those_there_did_not_report_is_not_committed() -> None:
    verdict = judge([passed(1)], {"a": [report(1)], "b": []})
    assert verdict.committed["calm"] == 0
    assert failures(figures(verdict, {}, [])) == ["0.000 of the calm rounds committed, not 0.95"]


def test_two_states_of_one_round_are_a_fork_whoever_reported_them() -> None:
    verdict = judge([passed(1, "kill meet member", "b")], {"a": [report(1)], "b": [report(1, "other")]})
    assert verdict.forks == ["round 1 of subject 0"] and "fork: round 1 of subject 0" in failures(
        figures(verdict, {}, [])
    )


def test_who_reports_long_after_the_close_is_told() -> None:
    verdict = judge([passed(1)], {"a": [report(1, time=CLOSE + 3.0)]})
    assert verdict.late == ["round 1: 3.0 s"]


def test_a_bad_update_that_nobody_names_is_told() -> None:
    verdict = judge([passed(1, "nan scatter member", "b")], {"a": [report(1)], "b": [report(1)]})
    assert verdict.unnamed == ["round 1: nan scatter member"]


def test_memory_is_judged_once_it_has_settled() -> None:
    assert growth([(number, 100.0) for number in range(SETTLED_ROUNDS)]) is None
    flat = [(number, 100.0 + number % 2) for number in range(400)]
    rising = [(number, 100.0 + number) for number in range(400)]
    assert abs(growth(flat) or 0.0) < 0.01
    assert (growth(rising) or 0.0) > 1.0
    told = failures(figures(judge([], {}), {"a": rising, "b": flat}, ["process 7"]))
    assert told == ["memory of a grew by 126%", "left over: process 7"]


def test_two_states_after_a_line_was_cut_in_the_meeting_are_told_apart_from_forks() -> None:
    cut = Round(1, CLOSE, "cut link meet leader", frozenset({"a", "b"}), frozenset(), may_fork=True)
    verdict = judge([cut], {"a": [report(1)], "b": [report(1, "other")]})
    assert verdict.forks == [] and verdict.allowed_forks == ["round 1 of subject 0"]


def test_the_record_says_what_was_done_and_what_came_of_it() -> None:
    rounds = [passed(1), passed(2, "nan scatter member", "c")]
    events = {"a": [report(1), report(2, rejected={"id-of-c": "not finite"})]}
    found = figures(judge(rounds, events), {"a": [(1, 2.0**20), (2, 2.0**21)]}, [])
    settings = {"rounds": 2, "replicas": 3, "fault_share": 0.5, "seed": 7, "round_seconds": 5.0}
    page = markdown(
        {"settings": settings, "machine": {"cpus": 2, "python": "3.11"}, "seconds": 60, "stopped_short": "", **found}
    )
    assert "seed 7" in page and "**Passed.**" in page
    assert "| divergent digests | 0 |" in page and "| nan scatter member | 1 | 100.0% |" in page
    assert "| a | 1 | 2 |  |" in page
