"""Slow volunteers: who is one, how much of late work counts, and who has room to bring it in (docs/protocol.md §6).

A replica whose step and upload do not fit a round is a *contributor*: it trains from a certified state for several
rounds and hands its update to a member, its *sponsor*, who brings it into a round beside its own. Everything here is a
pure function of measured seconds and of numbers that all members of a list have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from blockswarm.swarm.policy.robust import Robust

STALEST = 8
"""Rounds that may have passed since the state an update was trained from; an older one is refused."""

MOST_HOSTED = 1
"""Updates of one subject that a member brings into a round at most, whatever its line could bear.

So contributors never outnumber the members of a group, and a robust mean keeps its honest majority.
"""

SCATTER_SHARE = 0.8
"""Share of the scatter phase that a member's own update and its guest's may take on its line together."""

RETURN_BELOW = 0.75
"""A contributor becomes a member again only when step and upload take less than this share of what they may."""

SWITCH_AFTER = 3
"""Judgements in a row that must say so before a replica changes its role: one slow round changes nothing."""

TRAIN_SHARE = 0.5
"""Share of the rounds that an update stays welcome which a contributor trains and uploads; the rest is for being
brought in, and for a second try."""


def load_of(step_seconds: float, upload_seconds: float, *, round_seconds: float, scatter_seconds: float) -> float:
    """How much of what a round gives a member its work takes; above 1 it cannot be one.

    A step and the upload of an update must fit a round, and the upload by itself the scatter phase: whose parts come
    later is left out every time.

    Parameters
    ----------
    step_seconds, upload_seconds : float
        As measured: wall time of one local step, and of sending one encoded update; 0 while unknown.
    round_seconds, scatter_seconds : float
        From the manifest.
    """
    return max((step_seconds + upload_seconds) / round_seconds, upload_seconds / scatter_seconds)


@dataclass(frozen=True)
class Role:
    """What a replica is, and for how many judgements in a row it should have been the other thing."""

    contributor: bool = False
    streak: int = 0

    def judged(self, load: float, *, others: bool, at_once: bool = False) -> Role:
        """The role after one more measurement.

        Parameters
        ----------
        load : float
            See `load_of`.
        others : bool
            Whether a member is on record who could bring our work in. Without one there is nobody to delay, either.
        at_once : bool
            Change without waiting for `SWITCH_AFTER`: at the start there is no role to keep yet.
        """
        if self.contributor and not others:
            return Role()
        fits = load <= (RETURN_BELOW if self.contributor else 1.0)
        if fits == (not self.contributor) or not others:
            return Role(self.contributor)
        streak = self.streak + 1
        return Role(not self.contributor) if at_once or streak >= SWITCH_AFTER else Role(self.contributor, streak)


def takes_late_work(late: Literal["carry", "drop"], robust: Robust) -> bool:
    """Whether a run has contributors: late work must count, and weights too, or age would cost nothing."""
    return late == "carry" and robust != "trimmed"


def age_of(round_number: int, base_round: int) -> int:
    """Rounds that a state lies behind the parent of ``round_number``, were every round committed; 0 for a member."""
    return round_number - 1 - base_round


def age_problem(round_number: int, base_round: int) -> str:
    """Why an update from the state of ``base_round`` cannot enter ``round_number``; empty when it can."""
    age = age_of(round_number, base_round)
    if age < 0:
        return f"stale base: its round {base_round} lies in the future"
    if age > STALEST:
        return f"stale base: round {base_round} is {age} rounds old, at most {STALEST} are taken"
    return ""


def staleness_discount(age: int, carry_discount: float) -> float:
    """Which share of its samples an update of this age weighs.

    ``(1 + age) ** log2(carry_discount)``: nothing is taken off work from the parent, work one round late counts as
    carried work does, and older work less and less (the polynomial of Xie et al. 2019, its exponent from the manifest).
    With a carry discount of .5 it is 1, 1/2, 1/3, 1/4, …
    """
    if age <= 0:
        return 1.0
    return float((1 + age) ** math.log2(carry_discount)) if carry_discount > 0 else 0.0


def training_seconds(step_seconds: float, upload_seconds: float, round_seconds: float) -> float:
    """How long a contributor trains before it hands over: as long as an upload takes, and a step at least.

    Longer would waste its line, shorter its processor. It is bounded so that training and upload together take
    ``TRAIN_SHARE`` of the rounds that an update stays welcome; one step is made in any case.
    """
    most = TRAIN_SHARE * STALEST * round_seconds - upload_seconds
    return max(step_seconds, min(max(upload_seconds, round_seconds), most))


def can_contribute(step_seconds: float, upload_seconds: float, round_seconds: float) -> bool:
    """Whether one step and its upload are through before they are refused as too old."""
    return step_seconds + upload_seconds <= (STALEST - 1) * round_seconds


def room_for_guests(upload_seconds: float, scatter_seconds: float) -> int:
    """How many foreign updates a member can bring in beside its own without being late itself.

    Parameters
    ----------
    upload_seconds : float
        Measured time to send one encoded update; 0 while unknown, which is room for one.
    scatter_seconds : float
        From the manifest.
    """
    if upload_seconds <= 0:
        return 1
    return max(0, min(MOST_HOSTED, math.floor(SCATTER_SHARE * scatter_seconds / upload_seconds) - 1))
