"""What has a state of its own, and what it is called: the embedding, the blocks, the n-gram counts."""

from __future__ import annotations

from collections.abc import Iterable

from blockswarm.model.layout import COUNTS, EMBEDDING


def block_word(subject: int) -> str:
    """What is held, as the ``block`` option takes it: ``2``, or ``counts``."""
    return "counts" if subject == COUNTS else str(subject)


def subject_name(subject: int) -> str:
    """``block 2``, ``the embedding`` or ``the counts``, for people."""
    return {EMBEDDING: "the embedding", COUNTS: "the counts"}.get(subject) or f"block {subject}"


def subject_names(subjects: Iterable[int]) -> str:
    """``block 1``, ``blocks 0, 2`` or ``blocks 0, 2 and the counts``, for people."""
    known = list(subjects)
    blocks = [subject for subject in known if subject not in (EMBEDDING, COUNTS)]
    several = f"blocks {', '.join(map(str, blocks))}"
    names = [several] if len(blocks) > 1 else [subject_name(subject) for subject in blocks]
    return " and ".join([*names, *(subject_name(subject) for subject in known if subject not in blocks)])
