"""Following many contexts at once through the trie of an n-gram file, all of them one byte further at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.ngram_counts import Bytes
from blockswarm.model.ngram_reading import FileLevel, Index


@dataclass(frozen=True)
class Contexts:
    """A batch of contexts, each read backwards."""

    recent: Bytes
    """``[order, m]``: row j holds the byte j + 1 before the predicted one; anything where the context is shorter."""
    lengths: Index
    """Bytes of each context that may be looked at ``[m]``."""


@dataclass(frozen=True)
class Found:
    """What the trie knows of a batch of contexts."""

    rows: list[Index]
    """For each level: which contexts of the batch have a node there, ascending. All have one at level 0."""
    nodes: list[Index]
    """Those nodes."""
    leaf_rows: Index
    """Which contexts ended in a leaf."""
    leaf_followers: Bytes
    """The one byte that followed each of those."""
    leaf_levels: Index
    """On how many levels, from the leaf's own down, its occurrence agrees with the context; at least 1."""


def contexts_before(text: Bytes, ends: Index, lengths: Index, order: int) -> Contexts:
    """The contexts that end before positions ``ends`` of ``text``, ``lengths`` bytes each and at most ``order``."""
    steps = np.arange(1, order + 1)[:, np.newaxis]
    return Contexts(text[np.maximum(ends - steps, 0)], np.minimum(lengths, order))


def walk(levels: list[FileLevel], contexts: Contexts) -> Found:
    """Find the nodes and leaves of every context of a batch."""
    recent, lengths = contexts.recent, contexts.lengths
    rows, nodes = np.arange(len(lengths)), np.zeros(len(lengths), np.int64)
    all_rows, all_nodes = [rows], [nodes]
    leaf_rows: list[Index] = []
    leaf_followers: list[Bytes] = []
    leaf_levels: list[Index] = []
    for k in range(1, len(levels)):
        above, level = levels[k - 1], levels[k]
        long = lengths[rows] >= k
        rows, nodes = rows[long], nodes[long]
        wanted = recent[k - 1, rows]
        child, found = find(level.labels, above.nodes.at(nodes), above.nodes.at(nodes + 1), wanted)
        rest = ~found
        leaf, ended = find(
            level.leaf_labels, above.leaves.at(nodes[rest]), above.leaves.at(nodes[rest] + 1), wanted[rest]
        )
        leaf, at = leaf[ended], rows[rest][ended]
        agree = level.leaf_tails[leaf] == recent[k:, at].T
        agree &= np.arange(k, len(levels) - 1) < lengths[at, np.newaxis]
        leaf_rows.append(at)
        leaf_followers.append(level.leaf_followers[leaf])
        leaf_levels.append(1 + np.logical_and.accumulate(agree, axis=1).sum(axis=1))
        rows, nodes = rows[found], child[found]
        all_rows.append(rows)
        all_nodes.append(nodes)
    return Found(
        all_rows, all_nodes, np.concatenate(leaf_rows), np.concatenate(leaf_followers), np.concatenate(leaf_levels)
    )


def find(values: Bytes, begin: Index, end: Index, wanted: Bytes) -> tuple[Index, NDArray[np.bool_]]:
    """Look for one byte in each of many ascending stretches of ``values``, by bisection of all at once.

    Returns
    -------
    (int64 ``[m]``, bool ``[m]``)
        The index of the byte wanted in each stretch ``begin … end − 1``, and whether it is there.
    """
    if not len(values) or not len(begin):
        return begin, np.zeros(len(begin), bool)
    low, high = begin, end
    last = len(values) - 1
    for _ in range(int((end - begin).max()).bit_length()):
        middle = (low + high) >> 1
        less = values[np.minimum(middle, last)] < wanted
        searching = low < high
        low = np.where(searching & less, middle + 1, low)
        high = np.where(searching & ~less, middle, high)
    there: NDArray[np.bool_] = (low < end) & (values[np.minimum(low, last)] == wanted)
    return low, there


def expand(begin: Index, lengths: Index) -> Index:
    """All indices of many stretches, stretch after stretch: ``begin[0] … begin[0] + lengths[0] − 1``, and so on."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(begin - (ends - lengths), lengths), dtype=np.int64)
