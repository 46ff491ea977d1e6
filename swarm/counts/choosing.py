"""Which file of the run's counts a client uses: the one it was given, or what an earlier fetch has left."""

from __future__ import annotations

from pathlib import Path

from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.counts.files import CountsError, cache_folder, file_name, open_counts
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.manifest import Manifest


def find_counts(manifest: Manifest, given: str | Path | None) -> NgramModel | None:
    """The counts of ``manifest`` on this machine; None where they are not here. Reads the whole file.

    Parameters
    ----------
    manifest : Manifest
        The run.
    given : str or Path, optional
        Their file. By default the cache is looked at; a damaged file there counts as none.

    Raises
    ------
    ArgumentError
        When ``given`` is not the file that the manifest names, or it names none.
    """
    if given is not None:
        if manifest.counts is None:
            raise ArgumentError(f"{option('counts')} {given}: {manifest.run_id} has no n-gram counts")
        try:
            return open_counts(Path(given), manifest.counts)
        except CountsError as error:
            raise ArgumentError(f"{option('counts')} {error}") from error
    if manifest.counts is None:
        return None
    path = cache_folder() / file_name(manifest.counts)
    try:
        return open_counts(path, manifest.counts) if path.exists() else None
    except (CountsError, OSError):
        return None
