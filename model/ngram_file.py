"""The file of an n-gram model: how counts are laid out in bytes. ``ngram_reading`` reads and checks it.

All numbers are little-endian and unsigned; nothing is floating point. In order:

====== ======================= =========================================================================================
offset field                   meaning
====== ======================= =========================================================================================
0      8 bytes                 ``MAGIC``
8      u32                     format version, 2
12     u32                     order L: the longest context, 1 … 8 bytes
16     u32                     min count: contexts seen fewer times were left out; 1 where nothing was
20     u32                     0
24     u64                     bytes of the text that was counted
32     L + 1 rows of 4 × u64   sizes of the levels 0 … L: nodes N, leaves V, follower pairs P, large counts O
====== ======================= =========================================================================================

Then come the sections of level 0, of level 1, and so on, each filled up with zeros to a multiple of eight bytes; k is
the level, and what nodes and leaves are stands at ``ngram_counts.Level``:

==================== ============================= =====================================================================
section              type                          meaning
==================== ============================= =====================================================================
labels               u8 [N], none at level 0       byte k before the predicted one
pairs_base, pairs    u32 [N // 128 + 1], u16 [N+1] where each node's followers begin; the last is P
nodes_base, nodes    the same, not at level L      where each node's children begin among the next level's nodes
leaves_base, leaves  the same, not at level L      the same among the next level's leaves
followers            u8 [P]                        ascending in each node
counts               u8 [P]                        1 … 255, or 0 for a large count
large_at             u32 [O]                       the index of each large count, ascending
large                u32 [O]                       large counts, at least 256
leaf_labels          u8 [V]                        byte k before the predicted one
leaf_followers       u8 [V]                        the byte that followed
leaf_tails           u8 [V × (L − k)]              the older bytes, nearest first
==================== ============================= =====================================================================

Offset i of a pair of arrays is ``base[i // 128] + rest[i]``: two bytes an offset where four would be needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blockswarm.model.errors import ModelError
from blockswarm.model.ngram_counts import MAX_ORDER, MAX_TEXT, Bytes, Level, Numbers, count_ngrams, prune

MAGIC = b"BSNGRAM\n"
VERSION = 2

GROUP = 128
"""Offsets that share one base. They rise by at most 256 each, so what is added to the base fits 16 bits."""

SMALLEST_LARGE = 256
"""Counts from here on stand in a list of their own."""

_HEAD = struct.Struct("<8sIIIIQ")
_SIZES = struct.Struct("<4Q")


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    order: int
    """Longest context, bytes."""
    min_count: int
    """Contexts seen fewer times than this were left out."""
    corpus_bytes: int
    """Length of the text that was counted; no count is larger."""


class Sizes(NamedTuple):
    """Entries of one level."""

    nodes: int
    leaves: int
    pairs: int
    large: int


class Section(NamedTuple):
    """Where one array of one level stands in the file."""

    level: int
    name: str
    dtype: str
    length: int
    start: int

    @property
    def stop(self) -> int:
        """The first byte after its values; filling follows up to a multiple of eight."""
        return self.start + self.length * np.dtype(self.dtype).itemsize


def sections(order: int, sizes: list[Sizes]) -> list[Section]:
    """All sections in the order of the file."""
    placed = []
    start = _HEAD.size + len(sizes) * _SIZES.size
    for k, size in enumerate(sizes):
        offsets = ["pairs"] if k == order else ["pairs", "nodes", "leaves"]
        rows = [("labels", "u1", size.nodes if k else 0)]
        for name in offsets:
            rows += [(f"{name}_base", "<u4", size.nodes // GROUP + 1), (name, "<u2", size.nodes + 1)]
        rows += [("followers", "u1", size.pairs), ("counts", "u1", size.pairs)]
        rows += [("large_at", "<u4", size.large), ("large", "<u4", size.large)]
        rows += [("leaf_labels", "u1", size.leaves), ("leaf_followers", "u1", size.leaves)]
        rows += [("leaf_tails", "u1", size.leaves * (order - k))]
        for name, dtype, count in rows:
            placed.append(Section(k, name, dtype, count, start))
            start = _filled(placed[-1].stop)
    return placed


def read_header(data: memoryview) -> tuple[Header, list[Section], list[Sizes]]:
    """Read the header and check it against the length of the file; nothing else is looked at.

    Raises
    ------
    ModelError
        If this is no n-gram file, one of another version, damaged or cut off.
    """
    if len(data) < _HEAD.size or bytes(data[: len(MAGIC)]) != MAGIC:
        raise ModelError("this is not an n-gram file: it does not begin with its mark")
    _, version, order, min_count, zero, corpus_bytes = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ModelError(f"n-gram file has format version {version}, this software reads {VERSION}: build it again")
    if not 1 <= order <= MAX_ORDER or min_count < 1 or zero or not order < corpus_bytes <= MAX_TEXT:
        raise ModelError("n-gram file is damaged: its header holds a number that is out of range")
    if len(data) < _HEAD.size + (order + 1) * _SIZES.size:
        raise ModelError(f"n-gram file is cut off: {len(data)} bytes do not hold its header")
    sizes = [Sizes(*_SIZES.unpack_from(data, _HEAD.size + k * _SIZES.size)) for k in range(order + 1)]
    if sizes[0].nodes != 1 or sizes[0].leaves or max(map(max, sizes)) > MAX_TEXT:
        raise ModelError("n-gram file is damaged: its header holds a size that is out of range")
    placed = sections(order, sizes)
    expected = _filled(placed[-1].stop)
    if len(data) != expected:
        raise ModelError(
            f"n-gram file has {len(data)} bytes, its header describes {expected}: it is cut off or damaged"
        )
    return Header(order, min_count, corpus_bytes), placed, sizes


def build_ngram_file(
    text: Bytes,
    *,
    order: int = 8,
    min_count: int = 1,
    max_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> bytes:
    """Count ``text`` and lay the counts out as a file.

    Parameters
    ----------
    text : uint8 ``[n]``
        What is counted.
    order : int
        Longest context, 1 … 8 bytes.
    min_count : int
        Leave out contexts of one byte or more that were seen fewer times.
    max_bytes : int, optional
        Raise ``min_count`` just as far as it takes for the file not to be longer than this.
    progress : callable, optional
        Called as ``progress(bytes counted, bytes in total)``.

    Returns
    -------
    bytes
        The same for the same text and options on every machine.

    Raises
    ------
    ModelError
        If an option is out of range, the text cannot be counted, or no ``min_count`` makes the file small enough.
    """
    if not 1 <= min_count < 1 << 32:
        raise ModelError(f"n-gram min_count {min_count}: must lie between 1 and {(1 << 32) - 1}")
    levels = count_ngrams(text, order, progress)
    if max_bytes is not None:
        min_count = _fitting(levels, min_count, max_bytes)
    return _encode(Header(order, min_count, len(text)), prune(levels, min_count))


def ngram_files(text: Bytes, *, order: int, size: int) -> Iterator[bytes]:
    """The files of just ``size`` bytes that `build_ngram_file` can make of ``text``, by ascending min count.

    There may be several, since another min count may leave out the same contexts. The text is counted once.

    Raises
    ------
    ModelError
        If the order is out of range, the text cannot be counted, or no min count makes the file that small.
    """
    levels = count_ngrams(text, order)
    min_count, most = _fitting(levels, 1, size), len(text) + 1  # with ``most`` only the empty context is left
    while min_count <= most:
        levels = prune(levels, min_count)
        data = bytearray(_encode(Header(order, min_count, len(text)), levels))
        if len(data) != size:
            return
        # Until the rarest context goes, files differ in one number of their header.
        for count in range(min_count, _rarest(levels, most) + 1):
            _HEAD.pack_into(data, 0, MAGIC, VERSION, order, count, 0, len(text))
            yield bytes(data)
            min_count = count + 1


def _rarest(levels: list[Level], most: int) -> int:
    """How often the rarest context of one byte or more was seen; ``most`` where there is none."""
    if any(len(level.leaf_labels) for level in levels):
        return 1
    return min((int(level.totals().min()) for level in levels[1:] if len(level.kinds)), default=most)


def _fitting(levels: list[Level], least: int, max_bytes: int) -> int:
    """The smallest min count from ``least`` on whose file has at most ``max_bytes``."""
    low, high = least, max(least, int(levels[0].totals()[0]) + 1)  # at ``high`` only the empty context is left
    if (size := _size_of(levels, high)) > max_bytes:
        raise ModelError(f"n-gram max_bytes {max_bytes}: the smallest file of this order has {size} bytes")
    while low < high:
        middle = (low + high) // 2
        if _size_of(levels, middle) <= max_bytes:
            high = middle
        else:
            low = middle + 1
    return low


def _size_of(levels: list[Level], min_count: int) -> int:
    pruned = prune(levels, min_count)
    return _filled(sections(len(levels) - 1, [_sizes(level) for level in pruned])[-1].stop)


def _sizes(level: Level) -> Sizes:
    large = int(np.count_nonzero(level.counts >= SMALLEST_LARGE))
    return Sizes(len(level.kinds), len(level.leaf_labels), len(level.followers), large)


def _filled(size: int) -> int:
    return -(-size // 8) * 8


def _encode(head: Header, levels: list[Level]) -> bytes:
    sizes = [_sizes(level) for level in levels]
    placed = sections(head.order, sizes)
    out = bytearray(_filled(placed[-1].stop))
    _HEAD.pack_into(out, 0, MAGIC, VERSION, head.order, head.min_count, 0, head.corpus_bytes)
    for k, size in enumerate(sizes):
        _SIZES.pack_into(out, _HEAD.size + k * _SIZES.size, *size)
    arrays = [_arrays(level) for level in levels]
    for section in placed:
        values = arrays[section.level][section.name].astype(section.dtype, copy=False)
        out[section.start : section.stop] = values.tobytes()
    return bytes(out)


def _arrays(level: Level) -> dict[str, Numbers]:
    """The sections of a level by name."""
    large_at = np.flatnonzero(level.counts >= SMALLEST_LARGE)
    arrays: dict[str, Numbers] = {
        "labels": level.labels,
        "followers": level.followers,
        "counts": np.where(level.counts < SMALLEST_LARGE, level.counts, 0).astype(np.uint8),
        "large_at": large_at,
        "large": level.counts[large_at],
        "leaf_labels": level.leaf_labels,
        "leaf_followers": level.leaf_followers,
        "leaf_tails": level.leaf_tails,
    }
    for name, lengths in (("pairs", level.kinds), ("nodes", level.children), ("leaves", level.leaves)):
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        arrays[f"{name}_base"] = offsets[::GROUP]
        arrays[name] = offsets - np.repeat(offsets[::GROUP], GROUP)[: len(offsets)]
    return arrays
