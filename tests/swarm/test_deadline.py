"""Time limits: a number of seconds, or one moment for several calls."""

from __future__ import annotations

import pytest

from blockswarm.errors import UsageError
from blockswarm.swarm import Deadline
from blockswarm.swarm.deadline import check_timeout
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.options import Reading, Writing


class Watch:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_connecting_uses_up_the_time_for_the_whole() -> None:
    watch = Watch()
    deadline = Deadline(20.0, watch)
    watch.now += 12.5
    assert deadline.left() == check_timeout(deadline) == 7.5
    watch.now += 7.5
    with pytest.raises(DeadlineError, match="20 s were not enough: connecting"):
        deadline.left()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        Deadline(seconds)
    with pytest.raises(UsageError, match="timeout"):
        check_timeout(seconds)


@pytest.mark.parametrize("kind", [Writing, Reading])
def test_a_call_gets_what_is_left_when_it_is_made(kind: type[Writing] | type[Reading]) -> None:
    watch = Watch()
    deadline = Deadline(20.0, watch)
    watch.now += 15.0
    assert kind(timeout=deadline).seconds == 5.0
    assert kind(timeout=3.0).seconds == 3.0
    watch.now += 5.0
    with pytest.raises(DeadlineError):
        kind(timeout=deadline)
