"""Drafts get as long as pays: with good guesses, and with round trips that take long."""

from __future__ import annotations

import pytest

from blockswarm.swarm.policy.drafting import LONGEST_DRAFT, DraftPace


def after(accepted: int, drafted: int, *, round_trip: float, drafting: float = 0.0, times: int = 40) -> DraftPace:
    """A pace that has seen the same ``times`` times."""
    pace = DraftPace(3)
    for _ in range(times):
        pace.made(drafted, drafting * drafted)
        pace.note(drafted=drafted, accepted=accepted, seconds=round_trip)
    return pace


def test_a_draft_is_at_least_a_byte_long_and_never_longer_than_wanted() -> None:
    hopeless = after(0, 8, round_trip=0.08)
    assert hopeless.acceptance < 0.01
    assert hopeless.length(10) == 1
    perfect = after(8, 8, round_trip=0.08)
    assert perfect.length(100) == LONGEST_DRAFT
    assert [perfect.length(most) for most in (5, 1, 0)] == [5, 1, 0]


def test_better_guesses_make_longer_drafts() -> None:
    lengths = [after(accepted, 8, round_trip=0.08).length(32) for accepted in (1, 3, 5, 7)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_longer_round_trips_make_longer_drafts_and_costly_guesses_shorter_ones() -> None:
    near, far = after(4, 8, round_trip=0.02), after(4, 8, round_trip=0.3)
    assert near.length(32) < far.length(32)
    assert after(4, 8, round_trip=0.3, drafting=0.02).length(32) < far.length(32)


def test_what_was_seen_lately_decides() -> None:
    pace = after(8, 8, round_trip=0.08)
    for _ in range(40):
        pace.note(drafted=8, accepted=0, seconds=0.08)
    assert pace.length(32) <= 3 and pace.acceptance < 0.2


def test_a_byte_asked_for_alone_says_nothing_about_guesses() -> None:
    pace = DraftPace(3)
    before = pace.acceptance
    pace.note(drafted=0, accepted=0, seconds=0.08)
    assert pace.acceptance == before == pytest.approx(0.75)
