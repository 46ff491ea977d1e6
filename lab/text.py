"""The text of an experiment: training, validation and test bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockswarm.lab.errors import LabUsageError
from blockswarm.model.corpus import Corpus, open_corpus

Bytes = NDArray[np.uint8]

PARTS = ("train.txt", "valid.txt", "test.txt")
"""A folder with these files brings its own split."""


@dataclass(frozen=True)
class LabText:
    """A text in the parts that experiments use."""

    corpus: Corpus
    """Training bytes, and as ``heldout`` the validation bytes on which choices are made."""
    test: Bytes
    """Bytes not used for any choice; the validation bytes again where a text has no third part."""
    has_test: bool
    """Whether ``test`` is a part of its own."""

    @property
    def name(self) -> str:
        """The last part of the path, or the name it was opened by; fit for a table."""
        return Path(self.corpus.name).name or self.corpus.name

    def part(self, which: str) -> Bytes:
        """``valid`` or ``test``."""
        return self.test if which == "test" else self.corpus.heldout


def open_text(spec: str, *, context: int) -> LabText:
    """Open ``spec``: a folder with train.txt, valid.txt and test.txt, or whatever ``open_corpus`` takes.

    Parameters
    ----------
    spec : str
        Path, ``docs`` or ``hf:…``.
    context : int
        Bytes in a training sequence; every part must hold at least one more.

    Raises
    ------
    LabError
        If one of the three files is there and another is not, or is too short.
    CorpusError
        As ``open_corpus`` raises it.
    """
    folder = Path(spec)
    there = [name for name in PARTS if (folder / name).is_file()]
    if not there:
        corpus = open_corpus(spec, context=context)
        return LabText(corpus, corpus.heldout, has_test=False)
    if len(there) < len(PARTS):
        raise LabUsageError(f"{spec}: has {', '.join(there)} but not all of {', '.join(PARTS)}; add the missing file")
    parts = []
    for name in PARTS:
        try:
            parts.append(np.frombuffer((folder / name).read_bytes(), dtype=np.uint8))
        except OSError as error:
            raise LabUsageError(f"{folder / name}: cannot be read: {error.strerror}") from error
        if len(parts[-1]) < context + 2:
            raise LabUsageError(f"{folder / name}: holds {len(parts[-1])} bytes, needs at least {context + 2}")
    train, valid, test = parts
    digest = hashlib.sha256(b"".join(hashlib.sha256(part.data).digest() for part in parts)).digest()
    return LabText(Corpus(train, valid, spec, digest), test, has_test=True)
