"""What counts as a passed soak."""

from __future__ import annotations

from typing import Any

from tests.soak.judge import SETTLED_ROUNDS, Round, failures, figures, growth, judge

CLOSE = 100.0


def report(number: int, digest: str = "same", **changes: Any) -> dict[str, Any]:
    event = {"event": "round", "subject": 0, "round": number, "digest": digest, "committed": True, "rejected": {}}
    return {**event, "time": CLOSE + 0.1, **changes}


def passed(number: int, fault: str = "", victim: str = "", absent: tuple[str, ...] = ()) -> Round:
    return Round(number, CLOSE, fault, victim, frozenset(absent))


def test_a_round_counts_when_all_that_were_there_committed_one_state() -> None:
    rounds = [passed(1), passed(2, "nan", "c"), passed(3, absent=("c",))]
    named = {"rejected": {"c": "not finite"}}
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
    verdict = judge([passed(1, "SIGKILL meet", "b")], {"a": [report(1)], "b": [report(1, "other")]})
    assert verdict.forks == ["round 1 of subject 0"] and "fork: round 1 of subject 0" in failures(
        figures(verdict, {}, [])
    )


def test_who_reports_long_after_the_close_is_told() -> None:
    verdict = judge([passed(1)], {"a": [report(1, time=CLOSE + 3.0)]})
    assert verdict.late == ["round 1: 3.0 s"]


def test_a_bad_update_that_nobody_names_is_told() -> None:
    verdict = judge([passed(1, "huge", "b")], {"a": [report(1)], "b": [report(1)]})
    assert verdict.unnamed == ["round 1: huge"]


def test_memory_is_judged_once_it_has_settled() -> None:
    assert growth([(number, 100.0) for number in range(SETTLED_ROUNDS)]) is None
    flat = [(number, 100.0 + number % 2) for number in range(400)]
    rising = [(number, 100.0 + number) for number in range(400)]
    assert abs(growth(flat) or 0.0) < 0.01
    assert (growth(rising) or 0.0) > 1.0
    told = failures(figures(judge([], {}), {"a": rising, "b": flat}, ["process 7"]))
    assert told == ["memory of a grew by 126%", "left over: process 7"]
