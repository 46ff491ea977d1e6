"""An n-gram model of bytes: interpolated Witten-Bell over counts in a file that is mapped, not loaded.

For a context h that was seen c(h) times, with T(h) distinct bytes after it, and h′ = h without its oldest byte,

    p(w | h) = (c(h, w) + T(h) · p(w | h′)) / (c(h) + T(h)),        p(w | h′) of the empty context's parent = 1/256

(Witten and Bell 1991, method C, interpolated). A context that was never seen says p(w | h) = p(w | h′).

*Order* counts the bytes of context: order 8 looks at eight bytes and predicts the ninth. Counted on the training file
of WikiText-2 (tokens), that reading has a cross-entropy of 1.248 nats per byte on the whole test file, 1.260 on its
first 65,536 bytes, and the likeliest byte right 67 % of the time. If the predicted byte were one of the eight (order 7
here), it would be 1.200 and 1.217: the known 1.256 of "order 8", on a stretch not recorded, means eight bytes of
context. ``benchmarks/ngram.py`` prints such figures.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import VOCABULARY
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import CHUNK_BYTES, Float32, bytes_chunk_digests, digest_of_chunks
from blockswarm.model.ngram_file import Header
from blockswarm.model.ngram_reading import FileLevel, Index, read_ngram_file
from blockswarm.model.ngram_walk import Contexts, Found, contexts_before, expand, find, walk

_ROWS_AT_ONCE = 2048
"""Rows computed together. Each takes 2 KiB and, with the followers it gathers, at worst 40 KiB more."""

_BYTES_AT_ONCE = 1 << 14
"""The same where only one byte of each row is asked for."""

_HASHED_AT_ONCE = 16 * CHUNK_BYTES
"""Bytes of a file that are hashed before their pages are given back."""

_BYTE = [bytes([value]) for value in range(VOCABULARY)]

Bytes = NDArray[np.uint8]
Float64 = NDArray[np.float64]


class NgramModel:
    """The predictions of one n-gram file. Never changes; safe to use from several threads."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Check ``data`` (the whole file) and read from it from now on; see :meth:`open` for a file on disk.

        Raises
        ------
        ModelError
            If ``data`` is not a sound n-gram file.
        """
        self._data = data
        self.header: Header
        self.header, self._levels = read_ngram_file(memoryview(data), self._release)
        self.size = len(data)
        """Length of the file, bytes."""

    @property
    def data(self) -> memoryview:
        """The whole file."""
        return memoryview(self._data)

    @functools.cached_property
    def chunk_digests(self) -> tuple[bytes, ...]:
        """SHA-256 (32 bytes each) of the file's pieces of 1 MiB, in order.

        Computed when first asked for: it reads all of the file.
        """
        chunks: list[bytes] = []
        for start in range(0, self.size, _HASHED_AT_ONCE):
            chunks += bytes_chunk_digests(self.data[start : start + _HASHED_AT_ONCE])
            self._release()
        return tuple(chunks)

    @functools.cached_property
    def digest(self) -> bytes:
        """The name of the file: SHA-256 (32 bytes) over ``chunk_digests``, as of a block's state."""
        return digest_of_chunks(self.chunk_digests)

    def _release(self) -> None:
        """Give back the pages that were read: most are never asked for, and the system keeps the rest at hand."""
        if isinstance(self._data, mmap.mmap):
            with contextlib.suppress(AttributeError, OSError):
                self._data.madvise(mmap.MADV_DONTNEED)

    @classmethod
    def open(cls, path: Path) -> NgramModel:
        """Map a file and check all of it.

        Parameters
        ----------
        path : Path
            An n-gram file. It must not be changed in place while the model is in use.

        Raises
        ------
        ModelError
            If the file cannot be read or is not a sound n-gram file.
        """
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        try:
            model = cls(mapped)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        with contextlib.suppress(AttributeError, OSError):
            mapped.madvise(mmap.MADV_RANDOM)
        return model

    def log_probs(self, x: Bytes) -> Float32:
        """The distribution of the byte after each byte of some windows; same convention as ``BlockReader.log_probs``.

        Parameters
        ----------
        x : uint8 ``[n, t]``
            Windows of any length. A row sees at most the last ``order`` bytes, and none before its window.

        Returns
        -------
        ndarray, float32 ``[n, t, 256]``
            Natural log, normalised. Row i is the distribution of the byte that follows ``x[:, : i + 1]``.

        Raises
        ------
        ModelError
            If ``x`` is not uint8 of two axes.
        """
        if x.dtype != np.uint8 or x.ndim != 2:
            raise ModelError(f"windows are {x.dtype}{list(x.shape)}, expected uint8[n, t]")
        flat = x.reshape(-1)
        out = np.empty((x.size, VOCABULARY), dtype=np.float32)
        for start in range(0, x.size, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, x.size)
            ends = np.arange(start, stop) + 1
            seen = (ends - 1) % x.shape[1] + 1
            out[start:stop] = np.log(self._rows(contexts_before(flat, ends, seen, self.header.order)))
        return out.reshape(*x.shape, VOCABULARY)

    def byte_log_probs(self, text: Bytes) -> Float64:
        """ln p of every byte of a text but the first, each given the true bytes before it.

        Parameters
        ----------
        text : uint8 ``[m]``
            What is predicted.

        Returns
        -------
        ndarray, float64 ``[m − 1]``
            Empty for a text of less than two bytes.

        Raises
        ------
        ModelError
            If ``text`` is not uint8 of one axis.
        """
        if text.dtype != np.uint8 or text.ndim != 1:
            raise ModelError(f"text is {text.dtype}{list(text.shape)}, expected uint8[m]")
        out = np.empty(max(0, len(text) - 1))
        for start in range(0, len(out), _BYTES_AT_ONCE):
            stop = min(start + _BYTES_AT_ONCE, len(out))
            ends = np.arange(start, stop) + 1
            contexts = contexts_before(text, ends, ends, self.header.order)
            out[start:stop] = np.log(self._chosen(contexts, text[ends]))
        return out

    def next_log_probs(self, context: bytes) -> Float32:
        """The distribution of the byte after ``context``: one row, for a drafter that goes byte by byte.

        Parameters
        ----------
        context : bytes
            Of any length; only the last ``order`` bytes are looked at.

        Returns
        -------
        ndarray, float32 ``[256]``
            Natural log, normalised; the same row as :meth:`log_probs` gives.
        """
        recent = context[: -self.header.order - 1 : -1]
        spans, follower, run = self._descend(recent)
        weight = 0.5**run
        terms = []
        for level, (begin, end) in zip(reversed(self._levels[: len(spans)]), reversed(spans), strict=True):
            counts = level.counts.at(slice(begin, end))
            scale = weight / (float(counts.sum()) + (end - begin))
            terms.append((level.followers[begin:end], counts * scale))
            weight = scale * (end - begin)
        row = np.full(VOCABULARY, weight / VOCABULARY)
        for followers, shares in reversed(terms):
            row[followers] += shares
        row[follower] += 1.0 - 0.5**run  # adds nothing where there was no leaf
        return np.asarray(np.log(row), dtype=np.float32)

    def _rows(self, contexts: Contexts) -> Float64:
        """Probabilities of every byte after each context, ``[m, 256]``."""
        found = walk(self._levels, contexts)
        weight = self._leaf_weight(found, len(contexts.lengths))
        terms = []
        for level, rows, nodes in self._upward(found):
            begin = level.pairs.at(nodes)
            kinds = level.pairs.at(nodes + 1) - begin
            pairs = expand(begin, kinds)
            counts = level.counts.at(pairs)
            scale = weight[rows] / (_sums(counts, kinds) + kinds)
            terms.append((np.repeat(rows, kinds), level.followers[pairs], counts * np.repeat(scale, kinds)))
            weight[rows] = scale * kinds
        out = np.repeat(weight[:, np.newaxis] / VOCABULARY, VOCABULARY, axis=1)
        for at, followers, shares in reversed(terms):
            out[at, followers] += shares
        out[found.leaf_rows, found.leaf_followers] += 1.0 - 0.5**found.leaf_levels
        return out

    def _chosen(self, contexts: Contexts, wanted: Bytes) -> Float64:
        """The probability of one byte after each context, ``[m]``; what ``_rows`` has there, for less work."""
        found = walk(self._levels, contexts)
        weight = self._leaf_weight(found, len(wanted))
        terms = []
        for level, rows, nodes in self._upward(found):
            # The same contexts come again and again: each is summed once.
            distinct, again = np.unique(nodes, return_inverse=True)
            begin, end = level.pairs.at(distinct), level.pairs.at(distinct + 1)
            kinds = end - begin
            totals = _sums(level.counts.at(expand(begin, kinds)), kinds)
            pair, there = find(level.followers, begin[again], end[again], wanted[rows])
            scale = weight[rows] / (totals + kinds)[again]
            terms.append((rows[there], level.counts.at(pair[there]) * scale[there]))
            weight[rows] = scale * kinds[again]
        out = weight / VOCABULARY
        for rows, shares in reversed(terms):
            out[rows] += shares
        right = found.leaf_followers == wanted[found.leaf_rows]
        out[found.leaf_rows[right]] += 1.0 - 0.5 ** found.leaf_levels[right]
        return out

    def _upward(self, found: Found) -> Iterator[tuple[FileLevel, Index, Index]]:
        """Levels from the deepest that knows any of the contexts: the level, the contexts' rows, their nodes."""
        for level, rows, nodes in zip(reversed(self._levels), reversed(found.rows), reversed(found.nodes), strict=True):
            if len(rows):
                yield level, rows, nodes

    @staticmethod
    def _leaf_weight(found: Found, count: int) -> Float64:
        """What the leaves leave to the nodes above them: one half a level, since c = T = 1 on each."""
        weight = np.ones(count)
        weight[found.leaf_rows] = 0.5**found.leaf_levels
        return weight

    def _descend(self, recent: bytes) -> tuple[list[tuple[int, int]], int, int]:
        """Follow one context, nearest byte first: spans of its pairs from level 0 on; its leaf's byte and levels."""
        node = 0
        spans = [self._levels[0].pairs.span(0)]
        for k, byte in enumerate(recent, start=1):
            above, level = self._levels[k - 1], self._levels[k]
            found = self._search(byte, level.labels_start, above.nodes.span(node))
            if found >= 0:
                node = found
                spans.append(level.pairs.span(node))
                continue
            leaf = self._search(byte, level.leaf_labels_start, above.leaves.span(node))
            if leaf < 0:
                break
            run = 1
            for older, seen in zip(recent[k:], level.leaf_tails[leaf].tolist(), strict=False):
                if older != seen:
                    break
                run += 1
            return spans, level.leaf_followers.item(leaf), run
        return spans, 0, 0

    def _search(self, byte: int, start: int, span: tuple[int, int]) -> int:
        """Index of ``byte`` in that span of an array of bytes that begins at ``start`` of the file, or negative."""
        return self._data.find(_BYTE[byte], start + span[0], start + span[1]) - start if span[0] < span[1] else -1


def _sums(values: Float64, lengths: Index) -> Float64:
    """Sums of neighbouring stretches of ``values``, each of at least one."""
    return np.asarray(np.add.reduceat(values, np.cumsum(lengths) - lengths))
