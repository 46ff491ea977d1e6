"""What experiments ask for: readouts of trained plans over a part of a text, under a name of its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockswarm.lab.plan import Plan
from blockswarm.lab.text import LabText, open_text

CACHE = ".cache"
"""Folder within an output folder for trainings and measurements."""

WATCHED_BYTES = 1 << 14
"""Validation bytes a training looks at while it runs."""

FITTED_BYTES = 1 << 15
"""Validation bytes, from the first, on which the weight of the counts is fitted."""

NGRAM_ORDER = 8
NGRAM = "ngram"
"""Readout of the counts alone; needs no plan."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where text comes from and how much of it is measured on."""

    data: str
    """As ``open_text`` takes it."""
    context: int
    """Bytes in a window."""
    eval_bytes: int = 0
    """Bytes of a part that are measured, from its beginning; 0 = all of it."""

    def open(self) -> LabText:
        """The text."""
        return open_text(self.data, context=self.context)

    def measured(self, text: LabText, part: str) -> NDArray[np.uint8]:
        """The bytes of ``part`` (``valid`` or ``test``) that are measured: its first ``eval_bytes``, or all."""
        whole = text.part(part)
        return whole[: self.eval_bytes] if self.eval_bytes else whole


@dataclass(frozen=True, kw_only=True)
class Want:
    """Readouts of one trained model, or of several averaged, over a part of the text."""

    plans: tuple[Plan, ...]
    readouts: tuple[str, ...]
    part: str

    @property
    def needs_counts(self) -> bool:
        """Whether the n-gram model is read for it."""
        return any(readout == NGRAM or readout.endswith("+ngram") for readout in self.readouts)

    def key(self, text: LabText, source: Source) -> str:
        """A name for the measurement, apart from which readouts."""
        names = [plan.key(text.corpus.digest) for plan in self.plans]
        if not names:
            names = [counts_name(text)]
        content = "\0".join([*names, self.part, str(source.eval_bytes)])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def counts_name(text: LabText) -> str:
    """The file of the n-gram model of a text's training bytes, within a store."""
    return f"counts-{NGRAM_ORDER}-{text.corpus.digest.hex()[:24]}.ngram"


@dataclass(frozen=True)
class Step:
    """A report of progress."""

    task: str
    done: int
    total: int
