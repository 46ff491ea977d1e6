"""The text a volunteer trains on: opened by name, split once and for all into training and held-out bytes.

Text is bytes. It is cut into stretches of 64 KiB and the last tenth of each is held out, so that both parts come from
everywhere in the text and neither ever contains the other's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.errors import CorpusError
from blockswarm.model.layout import philox
from blockswarm.naming import option

STRETCH = 1 << 16
"""Bytes of text from each of which one piece is held out."""

HELDOUT_SHARE = 10
"""One part in this many of each stretch is held out."""

MAX_BYTES = 1 << 30
"""Largest corpus that is read (it is kept in memory)."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """A text, split."""

    train: Bytes
    """Training bytes, uint8 ``[n]``."""
    heldout: Bytes
    """Held-out bytes, uint8 ``[m]``; none of them is in ``train``."""
    name: str
    """The specification it was opened by."""
    digest: bytes
    """SHA-256 (32 bytes) of the whole text."""


def open_corpus(spec: str, *, context: int) -> Corpus:
    """Open and split the text that ``spec`` names.

    Parameters
    ----------
    spec : str
        ``docs``: the reference documentation inside this Python (it differs between Python versions).
        A path: that file, or all text files below that folder in the order of their relative paths.
        ``hf:<dataset>[:config]``: the training split of a dataset of the Hugging Face hub (extra ``datasets``).
    context : int
        Bytes in a training sequence; each part of the split must hold at least one more.

    Returns
    -------
    Corpus
        The same split on every machine that opens the same bytes.

    Raises
    ------
    CorpusError
        If the text is missing, unreadable, empty, too long or too short; names it and what is needed.
    """
    return split(read_text(spec), spec, context=context)


def read_text(spec: str) -> bytes:
    """The whole text that ``spec`` names, as `open_corpus` takes it; raises `CorpusError`."""
    if spec == "docs":
        return _documentation()
    return _hub_dataset(spec) if spec.startswith("hf:") else _path(spec)


def split(text: bytes, name: str, *, context: int) -> Corpus:
    """Split ``text`` into training and held-out bytes.

    Of each stretch of ``STRETCH`` bytes the last tenth is held out, and at least ``context + 1`` bytes; a last stretch
    too short to give a sequence to both parts is training text.

    Raises
    ------
    CorpusError
        If ``text`` is shorter than two sequences of ``context + 1`` bytes.
    """
    sequence = context + 1
    if len(text) < 2 * sequence:
        raise CorpusError(
            f"{name}: holds {len(text)} bytes, but training with a context of {context} needs at least {2 * sequence} "
            f"({sequence} to train on and {sequence} held out); give a longer text"
        )
    data = np.frombuffer(text, dtype=np.uint8)
    train, heldout = [], []
    stretch = max(STRETCH, 2 * sequence)
    for start in range(0, len(data), stretch):
        piece = data[start : start + stretch]
        held = max(len(piece) // HELDOUT_SHARE, sequence) if len(piece) >= 2 * sequence else 0
        train.append(piece[: len(piece) - held])
        heldout.append(piece[len(piece) - held :])
    return Corpus(np.concatenate(train), np.concatenate(heldout), name, hashlib.sha256(text).digest())


def batches(corpus: Corpus, seed: int, batch: int, context: int) -> Iterator[Bytes]:
    """Endless training batches, uint8 ``[batch, context + 1]``: sequences at random offsets drawn from ``seed``."""
    random = np.random.Generator(philox("batches", seed))
    windows = np.lib.stride_tricks.sliding_window_view(corpus.train, context + 1)
    while True:
        yield windows[random.integers(len(windows), size=batch)]


def heldout_windows(corpus: Corpus, context: int, count: int) -> Bytes:
    """Up to ``count`` held-out windows, uint8 ``[n, context + 1]``, evenly spread without overlap; always the same."""
    available = max(1, len(corpus.heldout) // (context + 1))
    count = min(count, available)
    starts = np.linspace(0, len(corpus.heldout) - (context + 1), count).astype(np.int64)
    return np.stack([corpus.heldout[start : start + context + 1] for start in starts])


def _documentation() -> bytes:
    """Every topic of ``pydoc_data.topics`` by name; a paragraph that an earlier topic already had is left out.

    Topics quote each other at length. Without this a fifth of the held-out text would also be training text.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        give = option("data", "FILE")
        raise CorpusError(f"docs: this Python has no pydoc_data.topics ({error}); give {give}, a text") from error
    seen: set[str] = set()
    kept = []
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept).encode()


def _path(spec: str) -> bytes:
    path = Path(spec)
    try:
        if path.is_dir():
            return _folder(path)
        _check_size(spec, path.stat().st_size)
        text = path.read_bytes()
    except FileNotFoundError as error:
        takes = f"{option('data')} takes docs, a path, or hf:<dataset>"
        raise CorpusError(f"{spec}: no such file or folder; {takes}") from error
    except (OSError, ValueError) as error:
        raise CorpusError(f"{spec}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not text:
        raise CorpusError(f"{spec}: is empty; give a file with text")
    return text


def _folder(folder: Path) -> bytes:
    parts: list[bytes] = []
    total = 0
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        total += path.stat().st_size
        _check_size(str(folder), total)
        text = path.read_bytes()
        if text and _is_text(text):
            parts.append(text)
        else:
            total -= len(text)
    if not parts:
        raise CorpusError(f"{folder}: holds no text file (hidden and binary files are passed over)")
    return b"\n\n".join(parts)


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_size(spec: str, size: int) -> None:
    if size > MAX_BYTES:
        raise CorpusError(f"{spec}: holds {size} bytes, more than the {MAX_BYTES} that are read; give a part of it")


def _hub_dataset(spec: str) -> bytes:
    name, _, config = spec.removeprefix("hf:").partition(":")
    if not name:
        raise CorpusError(f"{spec}: names no dataset; write hf:<dataset> or hf:<dataset>:<config>")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise CorpusError(f"{spec}: needs the datasets package: pip install 'blockswarm[datasets]'") from error
    try:
        rows = load_dataset(name, config or None, split="train", streaming=True)
        parts: list[bytes] = []
        total = 0
        for row in rows:
            text = row.get("text") or next((value for value in row.values() if isinstance(value, str)), "")
            parts.append(text.encode())
            total += len(parts[-1]) + 1
            _check_size(spec, total)
    except CorpusError:
        raise
    except Exception as error:  # the library raises many unrelated kinds for network, name and format trouble
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CorpusError(f"{spec}: the dataset cannot be loaded: {reason}") from error
    return b"\n".join(parts)
