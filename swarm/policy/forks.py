"""Two certified lines of one subject: which one wins, and what the other brings in (docs/protocol.md §10)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from blockswarm.swarm.policy.robust import Robust, method_for

MOST_PACE = 4.0
"""What is merged in a round is at most this many times as long as the update it travels with."""

LEAST_PACE = 0.25
"""The same from below, where the manifest shortens everything that is longer than its peers' updates."""

SETTLED = 0.005
"""A merge of which less than this share is left is done."""


@dataclass(frozen=True)
class Brought:
    """A contributor's update in the list of a round."""

    sponsor: str
    """The member that brought it in."""
    samples: int
    """As the contributor signed them."""
    discount: float
    """The share of them that it may weigh, by its age (`staleness_discount`)."""


@dataclass(frozen=True)
class LineRound:
    """One round of a line, as its certificate has it."""

    listed: Mapping[str, int]
    """Samples that the members announced, by peer id."""
    gained: int
    """Samples by which the quorum's count grew."""
    brought: tuple[Brought, ...] = ()

    @property
    def announced(self) -> int:
        """What it can have gained at most, rounded up."""
        return math.ceil(
            sum(self.listed.values()) + math.fsum(entry.samples * entry.discount for entry in self.brought)
        )


@dataclass(frozen=True)
class Weighing:
    """How two lines compare since their common ancestor."""

    own: float
    """Samples of the own line, capped per identity."""
    other: float
    other_wins: bool


@dataclass(frozen=True)
class MergePlan:
    """What one replica of the losing line brings into the winning one: ``factor · (own head - ancestor)``."""

    line_share: float
    """The losing line's share of the samples of both, since the ancestor."""
    own_share: float
    """This replica's share of the losing line's samples; over all replicas these add up to 1."""
    clip: float
    """Factor, at most 1, that makes the losing line's way no longer than the winning one's."""
    reason: str = ""
    """Why nothing is merged; empty when something is."""

    @property
    def factor(self) -> float:
        """0 when nothing is merged."""
        return 0.0 if self.reason else self.line_share * self.own_share * self.clip


def contributions(rounds: Iterable[LineRound], max_weight_ratio: float) -> dict[str, float]:
    """Certified samples of a stretch of a line, by identity.

    What a round gained is split by the samples that its members announced, each capped at ``max_weight_ratio`` times
    their lower median, as in a decision. A contributor's, capped and discounted as there, are its sponsor's: that is a
    member, and can merge them. All of it comes from the signed list and the quorum's count, which everyone has alike: a
    certificate's votes are only those that its holder has seen.
    """
    samples: dict[str, float] = {}
    for entry in rounds:
        listed = _capped(entry.listed, max_weight_ratio)
        cap = _cap(entry.listed, max_weight_ratio)
        for guest in entry.brought if listed else ():
            weight = min(guest.samples, cap) * guest.discount
            listed[guest.sponsor] = listed.get(guest.sponsor, 0.0) + weight
        total = math.fsum(listed.values())
        for peer_id, count in listed.items():
            samples[peer_id] = samples.get(peer_id, 0.0) + entry.gained * (count / total)
    return samples


def weigh(
    own: Mapping[str, float],
    other: Mapping[str, float],
    own_digest: bytes,
    other_digest: bytes,
    max_weight_ratio: float,
) -> Weighing:
    """Compare two lines since their common ancestor; both sides find the same.

    No identity counts for more than ``max_weight_ratio`` times the lower median of all identities in both lines: one
    that claims a million samples does not outweigh a crowd. On a tie the lower digest wins.

    Parameters
    ----------
    own, other : mapping
        See `contributions`.
    own_digest, other_digest : bytes
        Digests of the two heads.
    max_weight_ratio : float
        From the manifest.
    """
    counts = [count for line in (own, other) for count in line.values() if count > 0]
    cap = max_weight_ratio * median_low(counts) if counts else 0.0
    weights = [math.fsum(min(count, cap) for count in line.values()) for line in (own, other)]
    if weights[0] == weights[1]:
        return Weighing(weights[0], weights[1], other_digest < own_digest)
    return Weighing(weights[0], weights[1], weights[1] > weights[0])


def plan_merge(
    weighing: Weighing, own: Mapping[str, float], own_id: str, *, own_norm: float, other_norm: float
) -> MergePlan:
    """What this replica brings from its losing line into the winning one.

    Every replica of the losing line holds the same work, so each brings the share of it that the line's certificates
    say is its own. These shares add up to 1 whoever comes back and when: nothing is counted twice, and the part of a
    replica that never returns is lost with it.

    Parameters
    ----------
    weighing : Weighing
        Of the two lines.
    own : mapping
        Contributions to the losing line.
    own_id : str
        This replica.
    own_norm, other_norm : float
        Lengths of the ways from the ancestor to the losing and to the winning head.
    """
    both, total = weighing.own + weighing.other, math.fsum(own.values())
    share = own.get(own_id, 0.0) / total if total > 0 else 0.0
    line_share = weighing.own / both if both > 0 else 0.0
    if not (math.isfinite(own_norm) and math.isfinite(other_norm)):
        return MergePlan(line_share, share, 0.0, "the way from the fork is not finite")
    clip = min(1.0, other_norm / own_norm) if own_norm > 0 else 0.0
    if share <= 0:
        return MergePlan(line_share, share, clip, "none of that work is this peer's")
    if line_share <= 0 or clip <= 0:
        return MergePlan(line_share, share, clip, "there is nothing to bring in")
    return MergePlan(line_share, share, clip)


def expected_share(
    groups: Sequence[Mapping[str, int]], own_id: str, *, max_weight_ratio: float, robust: Robust
) -> float:
    """The share that an update of ours will have in a round's mean if everyone's is accepted; 0 when it cannot be.

    ``groups`` has the announced samples of the members of each group of the list.
    """
    own_weight = total = within = 0.0
    for group in groups:
        weights = _capped(group, max_weight_ratio)
        weight = math.fsum(weights.values())
        total += weight
        if own_id in weights:
            own_weight = weight
            trimmed = method_for(robust, len(weights)) == "trimmed"
            within = 1.0 / len(weights) if trimmed else weights[own_id] / weight
    return within * own_weight / total if total > 0 else 0.0


def merge_amount(left: float, *, share: float, norm: float, update_norm: float, pace: float) -> float:
    """How much of a merge goes into one round, as a share of the whole of it, with the sign of what is ``left``.

    To move the state by ``amount · v``, an update that is a ``share`` of the mean must be longer by
    ``amount / share · v``. That may be at most ``pace`` times as long as the update itself, or its peers would have to
    take it for a bad one: a fork of many rounds goes in over as many.

    Parameters
    ----------
    left : float
        What has not gone in yet; under 0 when a round counted more than was expected.
    share : float
        See `expected_share`, times what a commit makes of a mean in the long run.
    norm, update_norm : float
        Lengths of ``v`` and of the update.
    pace : float
        See `merge_pace`; infinite where there are no peers to look at it.
    """
    if share <= 0 or norm <= 0:
        return 0.0
    most = math.inf if math.isinf(pace) else pace * update_norm * share / norm
    return math.copysign(min(abs(left), most), left)


def merge_pace(robust: Robust, *, clip_ratio: float, max_norm_ratio: float) -> float:
    """How long a merged addition may be, in lengths of the update it travels with, so that peers still accept both."""
    room = (max_norm_ratio - 1) / 2 if robust == "none" else min(clip_ratio, max_norm_ratio) - 1
    return min(MOST_PACE, max(LEAST_PACE, room))


def _cap(samples: Mapping[str, int], max_weight_ratio: float) -> float:
    counted = [count for count in samples.values() if count > 0]
    return max_weight_ratio * median_low(counted) if counted else 0.0


def _capped(samples: Mapping[str, int], max_weight_ratio: float) -> dict[str, float]:
    cap = _cap(samples, max_weight_ratio)
    return {peer_id: min(float(count), cap) for peer_id, count in samples.items() if count > 0}


@dataclass(frozen=True)
class Pin:
    """A certified state kept because a line may have split from ours after it."""

    round: int
    lost: frozenset[str]
    """Members that were in its list and not in the next one."""
    since: float
    """Unix seconds."""


def pins_to_drop(pins: Mapping[bytes, Pin], now: float, *, most: int, seconds: float) -> list[bytes]:
    """Digests of pins to let go: too old ones, then those that the fewest members, and the latest, were lost after."""
    old = [digest for digest, pin in pins.items() if now - pin.since > seconds or not pin.lost]
    rest = [digest for digest in pins if digest not in old]
    ranked = sorted(rest, key=lambda digest: (-len(pins[digest].lost), pins[digest].round))
    return old + ranked[most:]
