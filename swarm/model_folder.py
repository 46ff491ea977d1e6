"""A whole model in one folder: what ``blockswarm export`` and experiments write, and what is read without a network.

=========================  ==========================================================================================
``swarm.toml``             the manifest of the run
``embedding.safetensors``  the shared embedding, its tensors by name; notes: run, round, samples, digest, certificate
``block-N.safetensors``    each block, the same way
``counts.ngram``           the n-gram counts, where the manifest names some
``MODEL_CARD.md``          the figures for people; never read back
=========================  ==========================================================================================

On reading nothing is believed: the files must be of the manifest beside them, their tensors must have its shapes and
hash to the digest in the notes, and the notes to their own. A certificate, where there is one, must be of that state.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from blockswarm.dht.frames import one_line
from blockswarm.model.layout import layout_of, state_digest, with_momentum
from blockswarm.model.ngram import NgramModel
from blockswarm.swarm.certified import check_certificate
from blockswarm.swarm.counts.files import CountsError, open_counts
from blockswarm.swarm.errors import GivenFolderError
from blockswarm.swarm.manifest import EMBEDDING, Manifest, subject_name
from blockswarm.swarm.messages import MAX_CERTIFICATE_BYTES, MAX_ROUND, MAX_SAMPLES, StateName
from blockswarm.swarm.pins import Pin
from blockswarm.swarm.statements import Certificate, StatementError

FORMAT = "blockswarm-model-1"
MANIFEST_FILE = "swarm.toml"
CARD_FILE = "MODEL_CARD.md"
COUNTS_FILE = "counts.ngram"

_NOTES_BYTES = 2 * MAX_CERTIFICATE_BYTES + (1 << 20)
"""A state's file is at most this much larger than its values."""


@dataclass(frozen=True, eq=False)
class SavedState:
    """The state of one subject as it stands in a folder."""

    subject: int
    """-1 for the embedding, else a block."""
    values: NDArray[np.float32]
    """The flat state, float32 ``[n]``."""
    round: int
    """Round that committed it, or how many there were."""
    samples: int
    """Training samples in it since genesis."""
    certificate: bytes = b""
    """Proof that a quorum committed it; empty where there is none: the genesis, and what no swarm has trained."""
    momentum_digest: bytes = b""
    """What the state's outer momentum hashes to, 32 bytes, in a run that has one: the digest is of both, the folder
    keeps the values alone."""

    @cached_property
    def digest(self) -> bytes:
        """State digest, 32 bytes."""
        return with_momentum(state_digest(self.values), self.momentum_digest)


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A whole model: the manifest, and a state of every subject."""

    manifest: Manifest
    states: Mapping[int, SavedState]
    counts: NgramModel | None = None
    """The n-gram counts that the manifest names; mapped, not loaded."""

    @cached_property
    def pin(self) -> Pin:
        """The names of its states, as a client of the swarm would pin them."""
        names = {subject: StateName(state.round, state.digest) for subject, state in self.states.items()}
        return Pin(names.pop(EMBEDDING), names)


def file_name(subject: int) -> str:
    """Name of the file of ``subject``."""
    return "embedding.safetensors" if subject == EMBEDDING else f"block-{subject}.safetensors"


def read_model_folder(folder: str | Path) -> SavedModel:
    """Read a model folder and check every byte of it.

    Parameters
    ----------
    folder : str or Path
        As written by `blockswarm.swarm.model_writer.write_model_folder`.

    Raises
    ------
    GivenFolderError
        Naming the file and what is wrong with it. Nothing is changed.
    ManifestError
        When ``swarm.toml`` is no manifest.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise GivenFolderError(f"{folder}: {what}; `blockswarm export` writes a model folder")
    if not (folder / MANIFEST_FILE).is_file():
        raise GivenFolderError(f"{folder}: not a model folder ({MANIFEST_FILE} is missing); see `blockswarm export`")
    manifest = Manifest.load(folder / MANIFEST_FILE)
    states = {subject: _read(folder, subject, manifest) for subject in manifest.subjects}
    return SavedModel(manifest, states, _read_counts(folder / COUNTS_FILE, manifest))


def notes_of(state: SavedState, manifest: Manifest) -> dict[str, str]:
    """What stands in the file of ``state`` beside its tensors."""
    notes = {
        "format": FORMAT,
        "run": manifest.digest.hex(),
        "run_id": manifest.run_id,
        "subject": str(state.subject),
        "round": str(state.round),
        "samples": str(state.samples),
        "digest": state.digest.hex(),
        "certificate": base64.b64encode(state.certificate).decode(),
        "momentum_digest": state.momentum_digest.hex(),
    }
    return notes | {"sha256": _digest_of_notes(notes)}


def certificate_of(state: SavedState, manifest: Manifest) -> Certificate | None:
    """The certificate of ``state``, checked; None when it has none.

    Raises
    ------
    StatementError
        When it is not of this state.
    """
    if not state.certificate:
        return None
    return check_certificate(
        manifest,
        state.subject,
        round_number=state.round,
        digest=state.digest,
        samples=state.samples,
        raw=state.certificate,
    )


def _digest_of_notes(notes: Mapping[str, str]) -> str:
    rows = (f"{key}\0{value}\n" for key, value in sorted(notes.items()) if key != "sha256")
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def _read_counts(path: Path, manifest: Manifest) -> NgramModel | None:
    if manifest.counts is None:
        return None
    if not path.exists():
        raise GivenFolderError(f"{path}: missing: without the counts the model is not whole; copy or export it again")
    try:
        return open_counts(path, manifest.counts)
    except CountsError as error:
        raise GivenFolderError(f"{error}; copy or export it again") from error


def _read(folder: Path, subject: int, manifest: Manifest) -> SavedState:
    path = folder / file_name(subject)
    try:
        return _checked(path, subject, manifest)
    except FileNotFoundError:
        raise GivenFolderError(
            f"{path}: missing: without {subject_name(subject)} the model is not whole; copy or export it again"
        ) from None
    except (SafetensorError, KeyError, ValueError, StatementError) as error:
        reason = (
            str(error) if isinstance(error, _UnusableError | StatementError) else f"damaged or half-written ({error})"
        )
        raise GivenFolderError(f"{path}: {one_line(reason)}; copy or export it again") from error
    except OSError as error:
        raise GivenFolderError(f"{path}: cannot be read: {error.strerror or error}") from error


class _UnusableError(ValueError):
    """Why a file cannot be used, in words for the user."""


def _checked(path: Path, subject: int, manifest: Manifest) -> SavedState:
    layout = layout_of(manifest.model, subject)
    # Before anything is read into memory: the manifest says how large a state is.
    if path.stat().st_size > 4 * layout.size + _NOTES_BYTES:
        raise _UnusableError(f"larger than {subject_name(subject)} of this model can be")
    values = np.empty(layout.size, dtype=np.float32)
    with safe_open(path, framework="numpy") as file:
        notes: dict[str, str] = file.metadata() or {}
        _check_owner(notes, subject, manifest)
        names = set(file.keys())
        if names != {entry.name for entry in layout.entries}:
            raise _UnusableError("damaged (its tensors are not those of this model)")
        for name, view in layout.views(values).items():
            tensor = file.get_tensor(name)
            if tensor.dtype != np.float32 or tensor.shape != view.shape:
                raise _UnusableError(
                    f"damaged ({name} is {tensor.dtype}{list(tensor.shape)}, not float32{list(view.shape)})"
                )
            view[...] = tensor
    values.flags.writeable = False
    state = SavedState(
        subject,
        values,
        _whole_number(notes, "round", MAX_ROUND),
        _whole_number(notes, "samples", MAX_SAMPLES),
        _certificate(notes),
        bytes.fromhex(notes["momentum_digest"]),
    )
    if state.digest.hex() != notes["digest"]:
        raise _UnusableError("damaged (its values do not hash to their digest)")
    if not np.isfinite(values).all():
        raise _UnusableError("not all its values are finite")
    certificate_of(state, manifest)
    return state


def _check_owner(notes: Mapping[str, str], subject: int, manifest: Manifest) -> None:
    if notes.get("format") != FORMAT:
        raise _UnusableError("not a state of a model folder, or of another version of blockswarm")
    if notes.get("sha256") != _digest_of_notes(notes):
        raise _UnusableError("damaged (its notes do not hash to their digest)")
    if notes["run"] != manifest.digest.hex():
        raise _UnusableError(
            f"of another run ({notes['run_id'][:64]}) than {MANIFEST_FILE} beside it ({manifest.run_id})"
        )
    if notes["subject"] != str(subject):
        raise _UnusableError(f"holds subject {notes['subject'][:64]}, not {subject_name(subject)}")


def _whole_number(notes: Mapping[str, str], name: str, most: int) -> int:
    value = int(notes[name])
    if not 0 <= value <= most:
        raise _UnusableError(f"{name} {value} is out of range")
    return value


def _certificate(notes: Mapping[str, str]) -> bytes:
    try:
        return base64.b64decode(notes["certificate"], validate=True)
    except binascii.Error as error:
        raise _UnusableError("damaged (its certificate cannot be read)") from error
