"""Bringing the work of a lost line into the winning one: a share of ours in the updates of ordinary rounds.

See docs/protocol.md §10. Nothing in a round, its decision or its commit knows of it: what is merged is a part of an
update, is measured and shortened with it, and only who sends it keeps account.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.forks import SETTLED, expected_share, merge_amount, merge_pace
from blockswarm.swarm.policy.robust import own_share

if TYPE_CHECKING:
    from blockswarm.peer.exchange import Exchange
    from blockswarm.peer.states import State

Float32 = npt.NDArray[np.float32]

MERGE_ROUNDS = 256
"""A merge that is not done after so many rounds is given up: the work would be too old."""


@dataclass
class Merge:
    """What is still to be brought in of one subject."""

    values: Float32
    """By how much the certified state is to move in all; float32, the subject's length."""
    norm: float
    until: int
    """Last round of it."""
    branches: tuple[str, ...]
    """The lost lines, named by their first states after the fork (hex)."""
    left: float = 1.0
    """Share that has not gone in."""
    reserved: float = 0.0
    """Taken off ``left`` for the round in progress. A crash leaves it off: nothing is ever brought in twice."""
    waits_for: bytes = b""
    """Digest of a candidate of ours that others may have certified."""
    waiting: float = 0.0
    """Share that has gone in if they have."""

    @property
    def done(self) -> bool:
        """Whether hardly anything is left."""
        return abs(self.left) < SETTLED and not self.reserved

    def reserve(self, amount: float) -> None:
        """A round takes this much."""
        self.reserved = amount
        self.left -= amount

    def resolve(self, merged: float) -> None:
        """So much of what was reserved has gone in."""
        self.left += self.reserved - merged
        self.reserved, self.waits_for, self.waiting = 0.0, b"", 0.0

    def wait_for(self, candidate: bytes, merged: float) -> None:
        """It has gone in if others have certified this candidate."""
        self.waits_for, self.waiting = candidate, merged

    def settled(self, digest: bytes) -> None:
        """This peer has gone over to a state: what waited for another one has not gone in."""
        if self.waits_for:
            self.resolve(self.waiting if digest == self.waits_for else 0.0)


@dataclass
class MergeShare:
    """What a round has of a merge; it goes through the round beside the update."""

    merge: Merge
    trained: Float32
    """The update without it."""
    addition: Float32
    """What was added to the update."""
    amount: float
    """Share of the merge that this was to bring in."""
    factor: float
    """By how much the addition is longer than the merge's own values."""
    merged: float = 0.0
    """Share that has gone in."""


def gain_of(manifest: Manifest) -> float:
    """By how much a state moves in the long run for a mean of one: an outer optimizer moves it on for some rounds."""
    settings = manifest.averaging
    return settings.outer_rate / (1.0 - settings.outer_momentum) if manifest.has_momentum else 1.0


def plan_share(exchange: Exchange, merge: Merge) -> MergeShare | None:
    """What goes into this round, whose list is known by now; ``None`` when nothing can. Arithmetic on whole vectors."""
    book, settings = exchange.book, exchange.manifest.averaging
    members = book.require_members()
    groups = [{peer: members.samples[peer] for peer in book.group(group)} for group in range(book.seats.count)]
    share = expected_share(
        groups, exchange.own_id, max_weight_ratio=settings.max_weight_ratio, robust=settings.robust
    ) * gain_of(exchange.manifest)
    alone = len(members.members) == 1
    pace = (
        float("inf")
        if alone
        else merge_pace(settings.robust, clip_ratio=settings.clip_ratio, max_norm_ratio=settings.max_norm_ratio)
    )
    update_norm = norm_of(exchange.delta)
    amount = merge_amount(merge.left, share=share, norm=merge.norm, update_norm=update_norm, pace=pace)
    if merge.waits_for or not np.isfinite(amount) or abs(amount) < SETTLED / 100:
        return None
    addition = np.float32(amount / share) * merge.values
    if not np.isfinite(addition).all():
        return None
    return MergeShare(merge, exchange.delta, addition, amount, amount / share)


def account(exchange: Exchange, share: MergeShare, sent: Float32 | None, voted: State | None) -> Float32 | None:
    """Note how much went in, and take it out of what the round contains of our update (`RoundResult.sent`)."""
    book = exchange.book
    decision, outcome = book.decision, book.outcome
    if sent is None or decision is None or outcome is None or voted is None:
        return sent
    robust = exchange.manifest.averaging.robust
    within = own_share(decision.weights, exchange.own_id, robust) * decision.clips.get(exchange.own_id, 1.0)
    moved = values = 0.0
    for part, averaged in outcome.parts.items():
        if book.own_group not in averaged.groups:
            continue
        begin, end = book.bounds[part]
        total = sum(outcome.counted[group].weight for group in averaged.groups)
        moved += (end - begin) * within * decision.weight / total
        values += end - begin
        sent[begin:end] -= share.addition[begin:end]
    # Where a part was left out it is not made up for: that would bring in the others twice.
    share.merged = share.factor * gain_of(exchange.manifest) * moved / values if values else 0.0
    return sent


def norm_of(values: Float32) -> float:
    """Euclidean length, summed in float64."""
    total = 0.0
    for begin in range(0, len(values), 1 << 18):
        piece = values[begin : begin + (1 << 18)].astype(np.float64)
        total += float(piece @ piece)
    return math.sqrt(total)
