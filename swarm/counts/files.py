"""The file of a run's counts on this machine: described for a manifest, found, and checked against one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np

from blockswarm.model.errors import ModelError
from blockswarm.model.layout import bytes_chunk_digests, digest_of_chunks
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_counts import Bytes
from blockswarm.model.ngram_file import ngram_files
from blockswarm.naming import option
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.counts_messages import CountsRequest
from blockswarm.swarm.errors import GivenManifestError, SwarmError
from blockswarm.swarm.manifest_fields import MAX_COUNTS_BYTES, Counts


class CountsError(SwarmError):
    """A file is not that of the run's counts."""


def describe(path: Path, weight: float) -> Counts:
    """What a manifest says of the counts in ``path``, mixed in with ``weight``.

    Raises
    ------
    GivenManifestError
        When it is no sound n-gram file, is too long, or the weight does not lie between 0 and 1.
    """
    if not 0 < weight < 1:
        raise GivenManifestError(f"{option('counts_weight')} {weight:g}: must lie between 0 and 1, both excluded")
    try:
        model = NgramModel.open(path)
    except ModelError as error:
        raise GivenManifestError(f"{option('counts')} {error}; make one with `blockswarm count`") from error
    if model.size > MAX_COUNTS_BYTES:
        raise GivenManifestError(
            f"{option('counts')} {path}: has {model.size:,} bytes, at most {MAX_COUNTS_BYTES:,} are allowed: count "
            "with a larger --min-count, or a lower --order"
        )
    return Counts(digest=model.digest.hex(), bytes=model.size, order=model.header.order, weight=weight)


def open_counts(path: Path, wanted: Counts) -> NgramModel:
    """Map the file ``path``, if it is the one that a manifest names.

    Raises
    ------
    CountsError
        Naming what does not fit. The length is looked at first: no other file is read.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CountsError(f"{path}: cannot be read: {error.strerror}") from error
    if size != wanted.bytes:
        raise CountsError(
            f"{path}: has {size:,} bytes, the run's counts have {wanted.bytes:,}: another file, or a part"
        )
    try:
        model = NgramModel.open(path)
    except ModelError as error:
        raise CountsError(str(error)) from error
    if model.digest.hex() != wanted.digest:
        raise CountsError(
            f"{path}: its digest is {model.digest.hex()[:12]}…, the run's counts are {wanted.digest[:12]}…"
        )
    if model.header.order != wanted.order:
        raise CountsError(f"{path}: is of order {model.header.order}, the manifest says {wanted.order}")
    return model


def build_counts(text: Bytes, wanted: Counts) -> bytes | None:
    """Count ``text`` into the file that a manifest names; None when another one comes out.

    The manifest does not tell how far the file was pruned, but its length does.
    """
    with contextlib.suppress(ModelError):  # too short a text for such a file
        for data in ngram_files(text, order=wanted.order, size=wanted.bytes):
            if digest_of_chunks(bytes_chunk_digests(memoryview(data))).hex() == wanted.digest:
                return data
    return None


def rows_of(model: NgramModel, request: CountsRequest) -> Float32:
    """The rows that ``request`` asks for, float32 ``[rows, 256]``."""
    parts = [
        model.log_probs(np.frombuffer(window, np.uint8)[np.newaxis])[0, take:]
        for window, take in zip(request.windows, request.take, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def file_name(counts: Counts) -> str:
    """What the file is called wherever it is kept by digest."""
    return f"{counts.digest}.ngram"


def cache_folder() -> Path:
    """Where clients keep the counts that they have fetched, for all programs of this user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # a user without a home; what is found there is checked like everything
        folder = Path(tempfile.gettempdir())
    return folder / "blockswarm" / "counts"
