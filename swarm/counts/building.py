"""Making the counts of a new run: counting a text into a file, and finding the weight that suits a model best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from blockswarm.files import write_atomically
from blockswarm.model.corpus import open_corpus, read_text
from blockswarm.model.mixing import without_veto
from blockswarm.model.mixing_fit import fit_mixture
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_counts import Bytes
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.scoring import cut_windows
from blockswarm.naming import option
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.counts.files import CountsError
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.evaluation import Sample, take_sample
from blockswarm.swarm.local_model import LocalModel
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.model_folder import read_model_folder

BYTES_A_BYTE = 40
"""Memory that counting takes for each byte of the text, at its peak and generously: 33 were measured on English."""


@dataclass(frozen=True)
class Fit:
    """How counts suit a model: cross-entropies in nats per byte on the same text."""

    weight: float
    """Share of the counts at which the mixture predicts best."""
    mixed: float
    blocks: float
    counts: float
    bytes: int
    """Bytes that were predicted."""


def held_out(spec: str, part: str, valid: Path | None, *, context: int, max_bytes: int) -> Sample | None:
    """The text to measure on: ``valid``, else what is held out of ``spec``; None when all of that is counted."""
    if valid is not None:
        return take_sample(str(valid), context=context, max_bytes=max_bytes, whole=True)
    return take_sample(spec, context=context, max_bytes=max_bytes) if part == "train" else None


def count_into(
    output: Path,
    spec: str,
    part: str,
    *,
    context: int,
    order: int,
    min_count: int = 1,
    max_mb: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NgramModel:
    """Count a text into the file ``output``, which must not exist.

    Parameters
    ----------
    output : Path
        The file; it appears in one step.
    spec, part : str
        Corpus, and ``train`` or ``all`` of it.
    context : int
        Context that the corpus is split by.
    order, min_count
        As for `blockswarm.model.ngram_file.build_ngram_file`.
    max_mb : float, optional
        Most megabytes of the file.
    progress : callable, optional
        Called as ``progress(bytes counted, bytes in total)``.

    Raises
    ------
    ArgumentError
        When the file exists, or an option is out of range.
    CountsError
        When it cannot be written, or the text is too long for this machine's memory.
    CorpusError, ModelError
        When the text cannot be read or counted.
    """
    if output.exists():
        raise ArgumentError(f"{output}: exists already and is left as it is; choose another name with --output")
    if max_mb is not None and not 0 < max_mb < 1e6:
        raise ArgumentError(f"{option('max_mb')} {max_mb:g}: must be a positive number of megabytes")
    text = open_corpus(spec, context=context).train if part == "train" else np.frombuffer(read_text(spec), np.uint8)
    need, free = BYTES_A_BYTE * len(text), psutil.virtual_memory().available
    if need > free:
        raise CountsError(
            f"{spec}: counting {len(text) / 1e6:,.0f} MB of text takes up to {need / 1e6:,.0f} MB of memory and "
            f"{free / 1e6:,.0f} MB are free: count a part of it"
        )
    most = None if max_mb is None else int(max_mb * 1e6)
    data = build_ngram_file(text, order=order, min_count=min_count, max_bytes=most, progress=progress)
    try:
        write_atomically(output, data, overwrite=False)
    except OSError as error:
        raise CountsError(f"{output}: cannot be written: {error.strerror or error}") from error
    return NgramModel(data)


def weigh(counts: NgramModel, folder: Path, sample: Sample) -> Fit:
    """The weight with which ``counts`` help the model in ``folder`` most, on a text that neither was made from.

    Raises
    ------
    GivenFolderError
        When the folder cannot be used.
    """
    saved = read_model_folder(folder)
    bare = LocalModel(replace(saved, manifest=replace(saved.manifest, counts=None), counts=None))
    data = np.frombuffer(sample.text, np.uint8)
    rows, other, targets = [], [], []
    for begin, end in sample.spans:
        rows.append(_block_rows(bare, bare.manifest, data[: end - 1], begin - 1))
        other.append(_count_rows(counts, data[: end - 1], begin - 1))
        targets.append(data[begin:end])
    blocks, ngram, right = np.concatenate(rows), np.concatenate(other), np.concatenate(targets)
    fit = fit_mixture(blocks, ngram, right)
    return Fit(fit.weight, fit.nats_per_byte, _nats(blocks, right), _nats(ngram, right), len(right))


def _block_rows(model: LocalModel, manifest: Manifest, text: Bytes, first: int) -> Float32:
    whole = model.whole
    predict = whole.predictor("parallel")
    parts = [
        predict(windows, starts)[:, take:].reshape(-1, 256)
        for windows, starts, take in cut_windows(text, manifest.model.context, whole.windows_at_once, first)
    ]
    return np.concatenate(parts)


def _count_rows(counts: NgramModel, text: Bytes, first: int) -> Float32:
    before = max(0, first + 1 - counts.header.order)
    return without_veto(counts.log_probs(text[np.newaxis, before:])[0, first - before :])


def _nats(rows: Float32, targets: Bytes) -> float:
    return -float(rows[np.arange(len(targets)), targets].astype(np.float64).mean())
