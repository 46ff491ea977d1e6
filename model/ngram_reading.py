"""Opening the file of an n-gram model: every number is checked before any of them is used.

Files come from strangers. Whatever passes here can be asked anything: all offsets lie inside their sections, labels and
followers ascend, and every count is at least one, so that each row of probabilities is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram_counts import Bytes
from blockswarm.model.ngram_file import GROUP, SMALLEST_LARGE, Header, read_header

_NODES_AT_ONCE = 1 << 14
"""Nodes checked together; each has up to 256 values."""
_COUNTS_AT_ONCE = 1 << 20
"""Counts checked together. With these two no check takes more than some 20 MB, whatever stands in the file."""

_DECODED = 1 << 17
"""Levels with at most so many follower pairs keep their counts in memory: few, asked at every byte, and often large."""

Index = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
"""The sections of one level by name."""


@dataclass(frozen=True)
class Offsets:
    """Where the entries of each node begin; the last offset ends the last node."""

    base: NDArray[np.uint32]
    rest: NDArray[np.uint16]

    def at(self, index: Index) -> Index:
        """The offsets with these numbers."""
        return self.base[index // GROUP].astype(np.int64) + self.rest[index]

    def span(self, node: int) -> tuple[int, int]:
        """Begin and end of one node's entries."""
        after = node + 1
        begin = self.base.item(node // GROUP) + self.rest.item(node)
        return begin, self.base.item(after // GROUP) + self.rest.item(after)


@dataclass(frozen=True)
class Counts:
    """The counts of a level's follower pairs."""

    small: Bytes
    large_at: NDArray[np.uint32]
    large: NDArray[np.uint32]
    decoded: NDArray[np.float64] | None
    """All of them, where they are few."""

    def at(self, index: Index | slice) -> NDArray[np.float64]:
        """Counts number ``index``."""
        if self.decoded is not None:
            return self.decoded[index]
        counts = self.small[index].astype(np.float64)
        if len(self.large) and not counts.all():
            hidden = np.flatnonzero(counts == 0.0)
            number = hidden + index.start if isinstance(index, slice) else index[hidden]
            counts[hidden] = self.large[np.searchsorted(self.large_at, number)]
        return counts


@dataclass(frozen=True)
class FileLevel:
    """The sections of one level, as views into the file; what they hold stands at ``ngram_counts.Level``."""

    labels: Bytes
    labels_start: int
    """The byte of the file where they begin: it is searched without NumPy when one context is asked for."""
    pairs: Offsets
    nodes: Offsets
    """Nothing at the deepest level, as ``leaves``."""
    leaves: Offsets
    followers: Bytes
    counts: Counts
    leaf_labels: Bytes
    leaf_labels_start: int
    leaf_followers: Bytes
    leaf_tails: Bytes


def read_ngram_file(data: memoryview, checked: Callable[[], None] = lambda: None) -> tuple[Header, list[FileLevel]]:
    """Check a file in full and give its parts. No memory is taken for sizes that the file's length contradicts.

    Parameters
    ----------
    data : memoryview
        The file.
    checked : callable
        Called after every level: what was looked at so far is not needed soon.

    Raises
    ------
    ModelError
        If ``data`` is not an n-gram file of this version, or damaged; says where.
    """
    head, placed, sizes = read_header(data)
    arrays: list[Arrays] = [{} for _ in sizes]
    starts = {(section.level, section.name): section.start for section in placed}
    for section, stop in zip(placed, [*(after.start for after in placed[1:]), len(data)], strict=True):
        arrays[section.level][section.name] = np.frombuffer(data, section.dtype, section.length, section.start)
        if any(data[section.stop : stop]):
            raise _damaged(section.level, f"the filling after {section.name} is not zero")
    for k, (level, size) in enumerate(zip(arrays, sizes, strict=True)):
        _check_entries(k, "pairs", level, size.pairs, level["followers"], least=1)
        _check_counts(k, level, head.corpus_bytes)
        if k < head.order:
            below, entries = arrays[k + 1], sizes[k + 1]
            _check_entries(k, "nodes", level, entries.nodes, below["labels"], least=0)
            _check_entries(k, "leaves", level, entries.leaves, below["leaf_labels"], least=0)
        checked()
    return head, [_file_level(k, level, head.order, starts) for k, level in enumerate(arrays)]


def _damaged(level: int, what: str) -> ModelError:
    return ModelError(f"n-gram file is damaged: level {level}, {what}")


def _check_entries(k: int, name: str, level: Arrays, total: int, values: Bytes, *, least: int) -> None:
    """Each node has ``least`` … 256 entries, together ``total``, and their ``values`` ascend in every node."""
    offsets = Offsets(level[f"{name}_base"], level[name])
    nodes = len(offsets.rest) - 1
    before = 0
    if offsets.rest.item(0) or offsets.base.item(0):
        raise _damaged(k, f"{name} do not begin at 0")
    for first in range(0, nodes, _NODES_AT_ONCE):
        places = offsets.at(np.arange(first, min(first + _NODES_AT_ONCE, nodes) + 1))
        lengths = np.diff(places)
        if places[0] != before or lengths.min() < least or lengths.max() > 256 or places[-1] > total:
            raise _damaged(k, f"the offsets of {name} do not ascend in order")
        before = int(places[-1])
        part = values[places[0] : before]
        falls = part[1:] <= part[:-1]
        inner = places[1:-1] - places[0]
        falls[inner[(inner > 0) & (inner < len(part))] - 1] = False
        if falls.any():
            raise _damaged(k, f"bytes of {name} do not ascend")
    if before != total:
        raise _damaged(k, f"the offsets of {name} end at {before} of {total}")


def _check_counts(k: int, level: Arrays, most: int) -> None:
    """Zeros stand exactly where the list of large counts says, and large counts are large, not absurd."""
    small, large_at, large = level["counts"], level["large_at"], level["large"]
    if len(large) and (large.min() < SMALLEST_LARGE or large.max() > most):
        raise _damaged(k, "a large count is out of range")
    found = 0
    for first in range(0, len(small), _COUNTS_AT_ONCE):
        zeros = np.flatnonzero(small[first : first + _COUNTS_AT_ONCE] == 0)
        zeros += first
        if not np.array_equal(large_at[found : found + len(zeros)], zeros):
            raise _damaged(k, "the list of large counts does not fit the counts")
        found += len(zeros)
    if found != len(large):
        raise _damaged(k, "the list of large counts does not fit the counts")


def _file_level(k: int, arrays: Arrays, order: int, starts: dict[tuple[int, str], int]) -> FileLevel:
    small, large_at, large = arrays["counts"], arrays["large_at"], arrays["large"]
    nothing = Offsets(large[:0], arrays["pairs"][:0])
    counts = Counts(small, large_at, large, None)
    if len(small) <= _DECODED:
        counts = Counts(small, large_at, large, counts.at(slice(0, len(small))))
    return FileLevel(
        labels=arrays["labels"],
        labels_start=starts[k, "labels"],
        pairs=Offsets(arrays["pairs_base"], arrays["pairs"]),
        nodes=Offsets(arrays["nodes_base"], arrays["nodes"]) if k < order else nothing,
        leaves=Offsets(arrays["leaves_base"], arrays["leaves"]) if k < order else nothing,
        followers=arrays["followers"],
        counts=counts,
        leaf_labels=arrays["leaf_labels"],
        leaf_labels_start=starts[k, "leaf_labels"],
        leaf_followers=arrays["leaf_followers"],
        leaf_tails=arrays["leaf_tails"].reshape(len(arrays["leaf_labels"]), order - k),
    )
