"""Counting n-grams: what followed every context of a text, as one trie of contexts, in plain NumPy.

A context is read backwards: level 1 of the trie holds the last byte before the predicted one, level k the byte k before
it. The extensions of a context therefore stand next to each other in the next level, and one sort serves all levels.
The text is taken apart by that last byte, so memory follows the largest share one byte has (the space, in English), and
what is left of a context of eight bytes and its follower fits one 64-bit number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError

MAX_ORDER = 8
"""Most context bytes: with its follower, a context less the byte it is sorted by must fit 64 bits."""

MAX_TEXT = 1 << 30
"""Most bytes that are counted; every index of a level then fits 32 bits."""

_FOLLOWER = 9

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.integer]
UInt64 = NDArray[np.uint64]
UInt16 = NDArray[np.uint16]


@dataclass(frozen=True)
class Level:
    """All contexts of one length k, in the order of their bytes read backwards.

    *Nodes* are contexts that are spelled out. A *leaf* is a context seen once whose parent was seen more often: it has
    one follower and one extension on every deeper level, so it stands for all of them and these have no entries.
    """

    labels: Bytes
    """Byte k before the predicted one, of each node ``[nodes]``; its parent has the other k − 1. Empty at level 0."""
    children: Numbers
    """Nodes of the next level that extend each node ``[nodes]``, 0 … 256."""
    leaves: Numbers
    """Leaves of the next level that extend each node ``[nodes]``, 0 … 256."""
    kinds: Numbers
    """Distinct followers T(h) of each node ``[nodes]``, 1 … 256."""
    followers: Bytes
    """The followers, node after node, ascending in each ``[pairs]``."""
    counts: Numbers
    """How often each of them followed, c(h, w) ``[pairs]``, at least 1."""
    leaf_labels: Bytes
    """As ``labels``, of each leaf ``[leaves of this level]``."""
    leaf_followers: Bytes
    """The byte that followed each leaf's one occurrence."""
    leaf_tails: Bytes
    """The older bytes of that occurrence, nearest first ``[leaves of this level, order − k]``."""

    def totals(self) -> NDArray[np.int64]:
        """How often each node's context was seen with a follower, c(h) ``[nodes]``."""
        ends = np.cumsum(self.kinds, dtype=np.int64)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts, dtype=np.int64)])
        return np.asarray(before[ends] - before[ends - self.kinds], dtype=np.int64)


def count_ngrams(text: Bytes, order: int, progress: Callable[[int, int], None] | None = None) -> list[Level]:
    """Count what follows every context of 0 … ``order`` bytes.

    Only bytes that have ``order`` bytes before them are counted, for contexts of every length alike: the count of a
    context is then the sum of the counts of its extensions.

    Parameters
    ----------
    text : uint8 ``[n]``
        What is counted, at least ``order + 1`` bytes.
    order : int
        Longest context, 1 … ``MAX_ORDER`` bytes.
    progress : callable, optional
        Called as ``progress(bytes counted, bytes in total)``.

    Returns
    -------
    list of Level
        One for each context length from 0. The same text gives the same numbers on every machine.

    Raises
    ------
    ModelError
        If the order is out of range, or the text is not uint8 of one axis, too short or too long.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ModelError(f"n-gram order {order}: must lie between 1 and {MAX_ORDER} bytes of context")
    if text.dtype != np.uint8 or text.ndim != 1:
        raise ModelError(f"text to count is {text.dtype}{list(text.shape)}, expected uint8[n]")
    if not order < len(text) <= MAX_TEXT:
        raise ModelError(f"text to count has {len(text)} bytes: order {order} takes {order + 1} to {MAX_TEXT}")
    newest = text[order - 1 : -1]
    parts: list[list[Level]] = [[] for _ in range(order + 1)]
    counted = 0
    present = np.flatnonzero(np.bincount(newest, minlength=VOCABULARY))
    for byte in present:
        places = np.flatnonzero(newest == byte) + order
        for level, part in zip(parts[1:], _count_after(text, places, order), strict=True):
            level.append(part)
        if progress is not None:
            counted += len(places)
            progress(counted, len(newest))
    root = _root(text[order:], parts[1], order)
    return [root, *(_join(level) for level in parts[1:])]


def prune(levels: list[Level], min_count: int) -> list[Level]:
    """Drop every context of one byte or more that was seen fewer than ``min_count`` times.

    A context is seen at least as often as its extensions, so what is kept is a trie again. Followers of a kept context
    are all kept: its probabilities do not change.
    """
    if min_count <= 1:
        return levels
    kept = [np.ones(1, bool), *(level.totals() >= min_count for level in levels[1:])]
    pruned = []
    for k, level in enumerate(levels):
        keep = kept[k]
        pairs = np.repeat(keep, level.kinds)
        children = level.children[keep]
        if k + 1 < len(levels):
            parents = np.repeat(np.arange(len(keep)), level.children)
            children = np.bincount(parents[kept[k + 1]], minlength=len(keep))[keep]
        pruned.append(
            Level(
                labels=level.labels[keep] if k else level.labels,
                children=children,
                leaves=np.zeros(len(children), np.int64),
                kinds=level.kinds[keep],
                followers=level.followers[pairs],
                counts=level.counts[pairs],
                leaf_labels=level.leaf_labels[:0],
                leaf_followers=level.leaf_followers[:0],
                leaf_tails=level.leaf_tails[:0],
            )
        )
    return pruned


def _root(followers: Bytes, first: list[Level], order: int) -> Level:
    """Level 0, the empty context, above the parts of level 1."""
    counts = np.bincount(followers, minlength=VOCABULARY)
    seen = np.flatnonzero(counts)
    empty = np.empty(0, np.uint8)
    return Level(
        labels=empty,
        children=np.array([sum(len(part.labels) for part in first)]),
        leaves=np.array([sum(len(part.leaf_labels) for part in first)]),
        kinds=np.array([len(seen)]),
        followers=seen.astype(np.uint8),
        counts=counts[seen],
        leaf_labels=empty,
        leaf_followers=empty,
        leaf_tails=np.empty((0, order), np.uint8),
    )


def _count_after(text: Bytes, places: NDArray[np.int64], order: int) -> list[Level]:
    """Levels 1 … ``order`` below one last byte: ``places`` are the positions that follow it."""
    windows = _sorted_windows(text, places, order)
    newest = text[places[0] - 1]
    groups = [_Groups.of(windows, k) for k in range(1, order + 1)]
    # Which groups are nodes: contexts seen more than once. Level 0 is a node whatever it saw.
    nodes = [group.sizes > 1 for group in groups]
    levels = []
    for k, group in enumerate(groups, start=1):
        node = nodes[k - 1]
        leaf = ~node
        if k > 1:
            leaf &= nodes[k - 2][groups[k - 2].holding(group.starts)]
        heads, single = windows[group.starts[node]], windows[group.starts[leaf]]
        children = leaves = np.zeros(len(heads), np.uint16)
        if k < order:
            parents = group.holding(groups[k].starts)
            rank = np.cumsum(node) - 1
            children = _tally(rank[parents[nodes[k]]], len(heads))
            leaves = _tally(rank[parents[~nodes[k] & node[parents]]], len(heads))
        kinds, followers, counts = _followers(windows, group, node, deepest=k == order)
        tails = np.array([_byte(single, j) for j in range(k + 1, order + 1)], dtype=np.uint8)
        levels.append(
            Level(
                labels=_byte(heads, k) if k > 1 else np.full(len(heads), newest, np.uint8),
                children=children,
                leaves=leaves,
                kinds=kinds,
                followers=followers,
                counts=counts,
                leaf_labels=_byte(single, k) if k > 1 else np.full(len(single), newest, np.uint8),
                leaf_followers=_byte(single, _FOLLOWER),
                leaf_tails=tails.reshape(order - k, len(single)).T,
            )
        )
    return levels


def _sorted_windows(text: Bytes, places: NDArray[np.int64], order: int) -> UInt64:
    """Each place's context and follower as one number, ascending.

    From the top: the bytes 2, 3, … ``order`` before the place (the nearest is the same for all), zeros, the follower.
    """
    windows = text[places].astype(np.uint64)
    for k in range(2, order + 1):
        windows |= text[places - k].astype(np.uint64) << np.uint64(_shift(k))
    windows.sort()
    return windows


def _shift(k: int) -> int:
    return 8 * (_FOLLOWER - k)


def _byte(windows: UInt64, k: int) -> Bytes:
    """Byte k before the place, k from 2, or the follower, which stands where byte 9 would."""
    return (windows >> np.uint64(_shift(k))).astype(np.uint8)


@dataclass(frozen=True)
class _Groups:
    """Runs of sorted windows with one context of k bytes."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, windows: UInt64, k: int) -> _Groups:
        if k == 1:
            starts = np.zeros(1, np.int64)
        else:
            contexts = windows >> np.uint64(_shift(k))
            starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(contexts[1:] != contexts[:-1]) + 1])
        return cls(starts, np.diff(starts, append=len(windows)))

    def holding(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the group that each of the deeper groups beginning at ``starts`` lies in."""
        return np.asarray(np.searchsorted(self.starts, starts, side="right") - 1, dtype=np.int64)


def _followers(
    windows: UInt64, groups: _Groups, node: NDArray[np.bool_], *, deepest: bool
) -> tuple[Numbers, Bytes, Numbers]:
    """Kinds of each node's followers, the followers, and their counts."""
    sizes = groups.sizes[node]
    chosen = windows if node.all() else windows[np.repeat(node, groups.sizes)]
    # Node and follower in one number; 32 bits sort twice as fast where they are enough.
    wide = np.uint32 if len(sizes) < 1 << 24 else np.uint64
    pairs: NDArray[np.unsignedinteger[Any]] = np.repeat(np.arange(len(sizes), dtype=wide), sizes)
    pairs <<= 8
    pairs |= chosen.astype(np.uint8)
    if not deepest:  # the windows themselves are in order at full length
        pairs.sort()
    starts = np.flatnonzero(pairs[1:] != pairs[:-1]) + 1
    if len(pairs):
        starts = np.concatenate([np.zeros(1, np.int64), starts])
    first = pairs[starts]
    return (
        _tally(first >> 8, len(sizes)),
        first.astype(np.uint8),
        np.diff(starts, append=len(pairs)).astype(np.uint32),
    )


def _tally(index: Numbers, length: int) -> UInt16:
    """How often each of 0 … ``length − 1`` occurs in ``index``: at most 256 times here."""
    return np.bincount(index.astype(np.int64), minlength=length).astype(np.uint16)


def _join(parts: list[Level]) -> Level:
    """One level from its parts, which follow each other by their last byte."""
    names = [field.name for field in fields(Level)]
    return Level(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
