"""Whom to ask first, how long to wait, whom to leave alone: with time as an argument, so nothing sleeps."""

from __future__ import annotations

import pytest

from blockswarm.swarm.route import BAN_SECONDS, FIRST_PATIENCE, HEDGE_FLOOR, HEDGES_SAVED, POOR_PATIENCE, Router


def known(**seconds: float) -> Router:
    """A router that has measured some holders."""
    router = Router()
    for peer, usual in seconds.items():
        router.answered(peer, work=1, seconds=usual)
    return router


def test_the_fastest_holder_is_asked_first() -> None:
    assert known(a=0.3, b=0.1, c=0.2).order(["a", "b", "c"], work=1, now=0) == ["b", "c", "a"]


def test_a_holder_never_measured_counts_as_average_not_as_infinitely_far() -> None:
    router = known(fast=0.1, middle=0.2, slow=0.9)
    order = router.order(["slow", "new", "fast"], work=1, now=0)
    assert order == ["fast", "new", "slow"]


def test_equal_holders_share_the_clients_but_each_client_stays_with_its_own() -> None:
    peers = [f"peer{n}" for n in range(4)]
    firsts = {Router(salt=bytes([n])).order(peers, work=1, now=0)[0] for n in range(40)}
    assert len(firsts) == 4
    router = Router(salt=b"x")
    assert router.order(peers, work=1, now=0) == router.order(reversed(peers), work=1, now=0)


def test_the_holder_in_use_keeps_the_work_unless_another_is_clearly_faster() -> None:
    router = known(a=0.12, b=0.10)
    assert router.order(["a", "b"], work=1, now=0, prefer="a")[0] == "a"
    assert known(a=0.3, b=0.1).order(["a", "b"], work=1, now=0, prefer="a")[0] == "b"


def test_work_spreads_over_holders_while_requests_are_under_way() -> None:
    router = known(a=0.10, b=0.11)
    router.started("a")
    assert router.order(["a", "b"], work=1, now=0)[0] == "b"
    router.ended("a")
    assert router.order(["a", "b"], work=1, now=0)[0] == "a"


def test_bans_are_short_grow_and_end() -> None:
    router = known(a=0.1, b=0.9)
    first, longest = BAN_SECONDS["error"]
    router.failed("a", now=100.0, kind="error")
    assert router.order(["a", "b"], work=1, now=100.0) == ["b", "a"]
    assert router.order(["a", "b"], work=1, now=100.0 + first) == ["a", "b"]
    for _ in range(50):
        router.failed("a", now=200.0, kind="error")
    assert router.banned("a", 200.0 + longest - 0.1)
    assert not router.banned("a", 200.0 + longest)


def test_the_last_holder_is_never_left_out() -> None:
    router = Router()
    router.failed("only", now=0.0, kind="untrusted")
    assert router.order(["only"], work=1, now=1.0) == ["only"]
    router.failed("other", now=1.0, kind="error")
    assert router.order(["only", "other"], work=1, now=1.0) == ["other", "only"], "whose ban ends first is tried first"


def test_a_good_answer_forgives_the_failures_before_it() -> None:
    router = Router()
    for _ in range(5):
        router.failed("a", now=0.0, kind="error")
    router.answered("a", work=1, seconds=0.1)
    router.failed("a", now=0.0, kind="error")
    assert not router.banned("a", BAN_SECONDS["error"][0])


@pytest.mark.parametrize(("asked_for", "given"), [(0.2, 0.2), (1e9, BAN_SECONDS["busy"][1]), (float("nan"), 0.5)])
def test_a_busy_holder_is_left_alone_as_long_as_it_asks_within_reason(asked_for: float, given: float) -> None:
    router = Router()
    router.failed("a", now=0.0, kind="busy", retry_after=asked_for)
    assert router.banned("a", given - 0.01) and not router.banned("a", given)


def test_patience_is_three_times_the_usual_and_more_for_more_work() -> None:
    router = known(a=0.2)
    assert router.patience("a", 1) == pytest.approx(0.6)
    assert known(a=0.001).patience("a", 1) >= HEDGE_FLOOR
    assert router.patience("new", 1) >= FIRST_PATIENCE
    assert router.patience("a", 4096) > router.patience("new", 1), "another size of request was never measured"


def test_rivals_are_earned_so_an_overloaded_swarm_is_not_asked_everything_twice() -> None:
    router = known(a=0.1)
    for _ in range(int(HEDGES_SAVED)):
        assert router.patience("a", 1) < 1
        router.hedged()
    assert router.patience("a", 1) == POOR_PATIENCE
    for _ in range(10):
        router.answered("b", work=1, seconds=0.1)
    assert router.patience("a", 1) < 1


def test_an_overtaken_holder_is_known_to_be_at_least_that_slow() -> None:
    router = known(a=0.1, b=0.15)
    router.overtaken("a", work=1, seconds=0.5)
    assert router.order(["a", "b"], work=1, now=0)[0] == "b"
