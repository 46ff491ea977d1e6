"""Writing a model folder: whole or not at all, and never over something else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from safetensors import SafetensorError
from safetensors.numpy import save_file

from blockswarm.files import write_atomically
from blockswarm.model.layout import check_vector, layout_of
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.swarm.errors import GivenFolderError, ModelFolderError
from blockswarm.swarm.manifest import COUNTS, EMBEDDING, Manifest, subject_name
from blockswarm.swarm.model_card import ModelSummary, StateSummary, model_card
from blockswarm.swarm.model_folder import (
    CARD_FILE,
    COUNTS_FILE,
    MANIFEST_FILE,
    SavedState,
    certificate_of,
    file_name,
    notes_of,
)

if TYPE_CHECKING:
    from blockswarm.model.mixing import Readout
    from blockswarm.swarm.evaluation import Evaluation

_SPARE_BYTES = 16 << 20
"""Disk space that must be left beside the states themselves: notes, manifest, card."""


def write_model_folder(
    folder: str | Path,
    manifest: Manifest,
    states: Iterable[SavedState],
    *,
    counts: NgramModel | None = None,
    force: bool = False,
) -> ModelSummary:
    """Write a whole model into ``folder``, which appears in one step.

    Parameters
    ----------
    folder : str or Path
        Must not exist, or be empty.
    manifest : Manifest
        What the model is.
    states : iterable of SavedState
        One of every subject of the manifest, in any order.
    counts : NgramModel, optional
        The n-gram counts, where the manifest names some.
    force : bool
        Replace an older model folder. Anything else is never overwritten.

    Raises
    ------
    ModelFolderError
        When the folder holds something else, a state does not fit the manifest or is missing, or the disk says no.
        What was there before is still there.
    """
    with ModelFolderWriter(folder, manifest, force=force) as writer:
        for state in states:
            writer.add(state)
        if counts is not None:
            writer.add_counts(counts)
        return writer.finish()


def write_card(summary: ModelSummary, evaluations: Mapping[Readout, Evaluation]) -> None:
    """Write the model card of a finished folder anew, with figures (by readout) measured since.

    Raises
    ------
    ModelFolderError
        When it cannot be written; the old one stays.
    """
    path = summary.folder / CARD_FILE
    with _disk(path):
        write_atomically(path, model_card(summary, evaluations).encode())


class ModelFolderWriter:
    """A model folder in the making, state by state, in a hidden folder beside its place. A context manager.

    Entering is `open`, leaving is `close`; who waits for neither in the event loop's thread calls them in another.

    Parameters
    ----------
    folder, manifest, force
        As for `write_model_folder`.

    Raises
    ------
    ModelFolderError
        On opening, when the folder could not take its place.
    """

    def __init__(self, folder: str | Path, manifest: Manifest, *, force: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
        self._force = force
        self._staged: Path | None = None
        self._summaries: dict[int, StateSummary] = {}
        self._counted = manifest.counts is None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Make the hidden folder."""
        self._check_place()
        with _disk(self.folder):
            place = self.folder.resolve()
            places = {"is where this command runs": place == Path.cwd(), "is a mount point": place.is_mount()}
        for what, holds in places.items():
            if holds:
                raise GivenFolderError(f"{self.folder}: {what} and cannot be replaced: name a folder in it")
        parent = place.parent
        need = 4 * sum(self.manifest.parameters(subject) for subject in self.manifest.subjects) + _SPARE_BYTES
        need += 0 if self.manifest.counts is None else self.manifest.counts.bytes
        with _disk(self.folder):
            parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(parent).free
            if free < need:
                raise ModelFolderError(
                    f"{self.folder}: the model needs {need / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB free"
                )
            self._staged = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=parent))

    def close(self) -> None:
        """Remove what was not finished. Not while another thread adds or finishes."""
        if self._staged is not None:
            shutil.rmtree(self._staged, ignore_errors=True)
            self._staged = None

    def add(self, state: SavedState) -> None:
        """Write one state. May be called from several threads, for different subjects.

        Raises
        ------
        ModelFolderError, ModelError
            When it cannot be written, or does not fit the manifest.
        StatementError
            When its certificate is of another state.
        """
        layout = layout_of(self.manifest.model, state.subject)
        check_vector(state.values, layout.size, subject_name(state.subject))
        certificate = certificate_of(state, self.manifest)
        path = self._place() / file_name(state.subject)
        with _disk(self.folder):
            save_file(layout.views(state.values), path, metadata=notes_of(state, self.manifest))
            path.chmod(0o644)
            _flush(path)
            size = path.stat().st_size
        self._summaries[state.subject] = StateSummary(
            subject=state.subject,
            file=path.name,
            parameters=layout.size,
            file_bytes=size,
            round=state.round,
            samples=state.samples,
            digest=state.digest,
            voters=len(certificate.voters) if certificate else 0,
            members=len(certificate.members.members) if certificate else 0,
        )

    def add_counts(self, model: NgramModel) -> None:
        """Write the n-gram counts.

        Raises
        ------
        ModelFolderError
            When they cannot be written, or are not those of the manifest.
        """
        if self.manifest.counts is None or model.digest.hex() != self.manifest.counts.digest:
            raise ModelFolderError(f"{self.folder}: these n-gram counts are not those of {self.manifest.run_id}")
        path = self._place() / COUNTS_FILE
        with _disk(self.folder), path.open("wb") as file:
            file.write(model.data)
            file.flush()
            os.fsync(file.fileno())
        self._counted = True

    def finish(self) -> ModelSummary:
        """Put the folder in its place.

        Raises
        ------
        ModelFolderError
            When a state is missing or the folder cannot take its place.
        """
        staged = self._place()
        missing = [subject_name(subject) for subject in self.manifest.subjects if subject not in self._summaries]
        missing += [] if self._counted else [subject_name(COUNTS)]
        if missing:
            raise ModelFolderError(f"{self.folder}: {', '.join(missing)} missing: a model folder holds a whole model")
        states = tuple(self._summaries[subject] for subject in self.manifest.subjects)
        summary = ModelSummary(self.folder, self.manifest, states)
        with _disk(self.folder):
            write_atomically(staged / MANIFEST_FILE, self.manifest.to_toml().encode())
            write_atomically(staged / CARD_FILE, model_card(summary).encode())
            staged.chmod(0o755)
            self._check_place()
            self._swap(staged)
        self._staged = None
        return summary

    def _place(self) -> Path:
        if self._staged is None:
            raise ModelFolderError(f"{self.folder}: the writer is not open: use it with `with`, and finish it once")
        return self._staged

    def _check_place(self) -> None:
        """Refuse to write over anything but nothing, an empty folder or, when forced, an older model folder."""
        with _disk(self.folder):
            if not self.folder.exists():
                return
            if not self.folder.is_dir():
                raise GivenFolderError(f"{self.folder}: exists and is no folder; choose another name")
            names = {path.name for path in self.folder.iterdir()}
        if not names:
            return
        ours = {MANIFEST_FILE, CARD_FILE, file_name(EMBEDDING)}
        foreign = sorted(name for name in names - ours - {COUNTS_FILE} if not _is_block_file(name))
        if foreign or not names >= ours:
            found = f"such as {foreign[0]}" if foreign else f"but no whole model ({min(ours - names)} is missing)"
            raise GivenFolderError(f"{self.folder}: holds something else, {found}; it is left as it is: choose another")
        if not self._force:
            raise GivenFolderError(
                f"{self.folder}: holds an older model; {option('force', True)} replaces it, or choose another name"
            )

    def _swap(self, staged: Path) -> None:
        place = self.folder.resolve()
        aside: Path | None = None
        try:
            if place.exists() and any(place.iterdir()):
                aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.old.", dir=place.parent))
                place.rename(aside)
            staged.rename(place)  # takes the place of an empty folder too
        except BaseException:
            if aside is not None and place.exists():
                shutil.rmtree(aside, ignore_errors=True)  # a whole model is in place: the old one, or already the new
            elif aside is not None:
                aside.rename(place)
            raise
        _flush(place.parent)
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _is_block_file(name: str) -> bool:
    number = name.removeprefix("block-").removesuffix(".safetensors")
    return number.isdecimal() and name == file_name(int(number))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the disk refuses, as one line about ``path``."""
    try:
        yield
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be written: {error.strerror or error}") from error
    except (RuntimeError, ValueError) as error:  # a loop of links, or no path at all
        raise GivenFolderError(f"{str(path)!r}: cannot be written: {error}") from error
    except SafetensorError as error:
        raise ModelFolderError(f"{path}: cannot be written: {error}") from error
