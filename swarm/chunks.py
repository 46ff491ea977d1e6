"""Which windows of a text travel in one request: bounded, and cut so that no row depends on the cutting. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blockswarm.model.windows import plan_windows, window_start
from blockswarm.swarm.messages import MAX_POSITIONS, MAX_WINDOWS, Windowed

CHUNK_POSITIONS = min(1024, MAX_POSITIONS)
"""Bytes of context in one request for a long text: a holder that trains meanwhile answers it in well under a second."""


@dataclass(frozen=True)
class Chunk(Windowed):
    """Windows of one text that travel in one request."""

    first_row: int
    """Absolute index of the first row of the answer; the rows are contiguous."""
    windows: tuple[bytes, ...]
    starts: tuple[int, ...]
    take: tuple[int, ...]


def last_row(text: bytes | bytearray, context: int) -> Chunk:
    """The window that predicts the byte after ``text``."""
    position = len(text) - 1
    start = window_start(position, context)
    return Chunk(position, (bytes(text[start:]),), (start,), (position - start,))


def chunks(text: bytes, context: int, first: int = 0, end: int | None = None) -> Iterator[Chunk]:
    """The rows ``first … end − 1`` of ``text`` (all by default) in requests of at most 64 windows and
    ``CHUNK_POSITIONS`` (one longer window goes alone)."""
    batch: list[tuple[int, int, int]] = []
    positions = 0

    def cut() -> Chunk:
        return Chunk(
            first_row=batch[0][0] + batch[0][2],
            windows=tuple(text[start:stop] for start, stop, _ in batch),
            starts=tuple(start for start, _, _ in batch),
            take=tuple(take for _, _, take in batch),
        )

    for start, stop, take in plan_windows(len(text) if end is None else end, context, first):
        if batch and (len(batch) == MAX_WINDOWS or positions + stop - start > CHUNK_POSITIONS):
            yield cut()
            batch, positions = [], 0
        batch.append((start, stop, take))
        positions += stop - start
    if batch:
        yield cut()
