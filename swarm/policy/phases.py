"""When a round's phases begin and end (docs/protocol.md §5): a pure function of the manifest and the round's number.

Round ``r`` closes at ``genesis + r * seconds``. Its phases stand right before that moment, in this order::

    … local steps …|  meet  | scatter | decide | gather | commit |
               train_end                                        close

With more than one group, ``combine`` stands between ``decide`` and ``gather`` (`with_combining`). Local training
goes on through the phases; only the snapshot that enters the average is taken at ``train_end``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PhaseLengths:
    """Length of every phase of a round, in seconds."""

    meet: float
    """Replicas that take part find each other and agree on one list."""
    scatter: float
    """Every member sends each reducer its part of the update."""
    decide: float
    """Reducers report, the leader signs one decision."""
    gather: float
    """Reducers send the averaged parts to everyone."""
    commit: float
    """The outcome is proposed, voted on and certified."""

    @property
    def total(self) -> float:
        """Seconds from the end of training to the close of the round."""
        return self.meet + self.scatter + self.decide + self.gather + self.commit


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """The moments of one round, in Unix seconds."""

    round: int
    train_end: float
    meet_end: float
    scatter_end: float
    decide_end: float
    combine_end: float
    """Equal to ``decide_end`` with one group."""
    gather_end: float
    close: float


COMBINE_SHARE = 0.2
"""Share of the time from the meeting to the close in which several groups combine their means.

Each member sends and receives at most a group size's part of an update then; the rest is for two messages' delays.
"""

SHARE_OF_ROUND = 0.7
"""Phases may take at most this share of a round; the rest absorbs stragglers of the round before."""

LEAST_SECONDS = {"meet": 1.0, "scatter": 0.4, "decide": 0.5, "gather": 0.4, "commit": 0.6}
"""Below these a phase cannot hold two round trips of 80 ms on a loaded machine."""

COMFORT_SECONDS = {"meet": 4.0, "scatter": 2.0, "decide": 2.0, "gather": 2.0, "commit": 2.0}
"""Taken when the round is long enough; more would only delay a decision that is already made."""


def default_phases(round_seconds: float, update_bytes: int, bandwidth: float) -> PhaseLengths:
    """Phase lengths for a round, given what must cross a replica's uplink.

    Scatter and gather each move at most the whole update once over a replica's link, with a margin of two.

    Parameters
    ----------
    round_seconds : float
        Length of a round in seconds.
    update_bytes : int
        Encoded size of one update in bytes.
    bandwidth : float
        Bytes per second every replica is expected to have in each direction.

    Returns
    -------
    PhaseLengths

    Raises
    ------
    ValueError
        If the phases cannot fit in ``SHARE_OF_ROUND`` of the round; the message says how long a round would do.
    """
    transfer = 2.0 * update_bytes / bandwidth
    moving = {"scatter": transfer, "gather": transfer}
    least = {name: seconds + moving.get(name, 0.0) for name, seconds in LEAST_SECONDS.items()}
    comfort = {name: seconds + moving.get(name, 0.0) for name, seconds in COMFORT_SECONDS.items()}
    budget = SHARE_OF_ROUND * round_seconds
    needed = sum(least.values())
    if needed > budget:
        raise ValueError(
            f"a round of {round_seconds:g} s is too short: an update of {update_bytes / 1e6:.1f} MB at "
            f"{bandwidth * 8 / 1e6:.1f} Mbit/s needs at least {math.ceil(needed / SHARE_OF_ROUND)} s"
        )
    scale = min(1.0, (budget - needed) / (sum(comfort.values()) - needed))
    lengths = {name: round(least[name] + scale * (comfort[name] - least[name]), 3) for name in least}
    return PhaseLengths(**lengths)


def times_of(number: int, genesis: float, seconds: float, lengths: PhaseLengths) -> RoundTimes:
    """The moments of round ``number`` (≥ 1) in Unix seconds."""
    close = genesis + number * seconds
    gather_end = close - lengths.commit
    decide_end = gather_end - lengths.gather
    scatter_end = decide_end - lengths.decide
    meet_end = scatter_end - lengths.scatter
    return RoundTimes(
        round=number,
        train_end=meet_end - lengths.meet,
        meet_end=meet_end,
        scatter_end=scatter_end,
        decide_end=decide_end,
        combine_end=decide_end,
        gather_end=gather_end,
        close=close,
    )


def with_combining(times: RoundTimes, groups: int) -> RoundTimes:
    """The moments of a round whose list has ``groups`` groups: with more than one, they combine before they gather.

    What comes before the list is signed stays where it is, and so does the close; the phases between give up
    ``COMBINE_SHARE`` of themselves. A round of one group loses nothing.
    """
    if groups == 1:
        return times
    kept = 1.0 - COMBINE_SHARE
    scatter_end = times.meet_end + kept * (times.scatter_end - times.meet_end)
    decide_end = scatter_end + kept * (times.decide_end - times.scatter_end)
    combine_end = decide_end + COMBINE_SHARE * (times.close - times.meet_end)
    gather_end = combine_end + kept * (times.gather_end - times.combine_end)
    return dataclasses.replace(
        times, scatter_end=scatter_end, decide_end=decide_end, combine_end=combine_end, gather_end=gather_end
    )


def round_in_progress(now: float, genesis: float, seconds: float) -> int:
    """Number of the round that closes next; at least 1."""
    return max(1, math.floor((now - genesis) / seconds) + 1)


def next_round_to_join(now: float, genesis: float, seconds: float, lengths: PhaseLengths) -> int:
    """The first round whose training has not ended at ``now``: the earliest one a replica can take part in."""
    number = round_in_progress(now, genesis, seconds)
    return number if times_of(number, genesis, seconds, lengths).train_end > now else number + 1
