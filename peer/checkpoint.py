"""What a peer keeps on disk to go on where it stopped: its certified states and the work since then.

A checkpoint is one safetensors file ``round-00000012.safetensors`` in ``<state folder>/checkpoints``, written in full
or not at all. The newest three are kept. On reading nothing is believed: sizes must fit the manifest, and arrays and
notes must hash to the digests written beside them; a file that fails is passed over, by name, for the next older one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as encode_safetensors

from blockswarm.dht.frames import one_line
from blockswarm.errors import BlockswarmError
from blockswarm.files import write_atomically
from blockswarm.naming import option
from blockswarm.peer.states import State
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.messages import MAX_ROUND, MAX_SAMPLES

FORMAT = "blockswarm-checkpoint-1"
KEEP = 3

_IN_STATES = ("block", "embedding", "block.momentum", "embedding.momentum")
"""Arrays that are named by the digests of their states; all others have one of their own."""

_NAME = re.compile(r"round-(\d{8,})\.safetensors")
Float32 = NDArray[np.float32]


class CheckpointError(BlockswarmError):
    """A checkpoint could not be written. The earlier ones are untouched and training can go on."""


class _UnusableError(Exception):
    """Why one file is skipped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A peer's certified states, and its live weights, which are ahead of them by the work that is still pending."""

    block: State
    embedding: State
    theta: Float32
    """Live block weights, float32 of the block's size."""
    live_embedding: Float32
    """Live embedding, float32 of the embedding's size."""
    pending: Mapping[int, float] = field(default_factory=dict)
    """Subject → samples in the live weights that no certified state contains."""
    moments: Mapping[str, Float32] = field(default_factory=dict)
    """The optimizer's own arrays, if they are worth their size to the caller."""

    @property
    def round(self) -> int:
        """Round of the block's certified state."""
        return self.block.round


@dataclass(frozen=True)
class Resumed:
    """What was found in the folder."""

    checkpoint: Checkpoint | None
    skipped: tuple[str, ...]
    """Newer files that could not be used, each as ``name: reason``."""


class CheckpointFolder:
    """The checkpoints of one peer. Its state folder is locked, so nobody else writes here.

    Parameters
    ----------
    state_dir : Path
        The peer's state folder; checkpoints go to its subfolder ``checkpoints``, made when first needed.
    keep : int
        Newest files kept.
    """

    def __init__(self, state_dir: Path, *, keep: int = KEEP) -> None:
        self.folder = state_dir / "checkpoints"
        self._keep = keep
        # A save that is given up on, on leaving, goes on in its thread: the last one must wait for it, not race it.
        self._saving = threading.Lock()

    def save(self, checkpoint: Checkpoint, manifest: Manifest) -> Path:
        """Write ``checkpoint`` and let the oldest files go. Blocks until it is on disk: call it in a thread.

        Raises
        ------
        CheckpointError
            One line with the file, the reason (disk full, not writable) and what is left.
        """
        with self._saving:
            return self._save(checkpoint, manifest)

    def _save(self, checkpoint: Checkpoint, manifest: Manifest) -> Path:
        path = self.folder / f"round-{checkpoint.round:08d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_half_written()
            write_atomically(path, _encode(checkpoint, manifest), mode=0o600)
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot save the checkpoint: {error.strerror or error}; {self._what_is_left(path)}"
            ) from error
        with contextlib.suppress(OSError):  # the new one is safe on disk; what cannot be removed now goes next time
            self._clear_old(checkpoint.round)
        return path

    def load_newest(self, manifest: Manifest) -> Resumed:
        """The newest intact checkpoint of this run, and why newer files were passed over.

        Raises
        ------
        CheckpointError
            When the folder itself cannot be read; never for what its files contain.
        """
        skipped: list[str] = []
        try:
            files = self._files()
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: cannot read the checkpoints: {error.strerror}; "
                f"give another folder with {option('state_dir')}"
            ) from error
        for _, path in files:
            try:
                return Resumed(_decode(path, manifest), tuple(skipped))
            except _UnusableError as reason:
                skipped.append(f"{path.name}: {one_line(str(reason))}")
            except OSError as error:
                skipped.append(f"{path.name}: cannot be read: {error.strerror or error}")
        return Resumed(None, tuple(skipped))

    def set_aside(self) -> Path | None:
        """Keep what is here out of the way of another block's or run's checkpoints; where it went, if there was any.

        Raises
        ------
        CheckpointError
            When the folder cannot be renamed.
        """
        if not self.folder.exists() or not any(self.folder.iterdir()):
            return None
        number = 1
        while (target := self.folder.with_name(f"checkpoints-{number}")).exists():
            number += 1
        try:
            return self.folder.rename(target)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be renamed to {target.name}: {error.strerror}") from error

    def _files(self) -> list[tuple[int, Path]]:
        """Checkpoints by round, newest first."""
        if not self.folder.exists():
            return []
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)

    def _clear_old(self, newest: int) -> None:
        # Files of later rounds belong to a line of states that this peer has left for a heavier one.
        left_behind = [file for number, file in self._files() if number > newest]
        older = [file for number, file in self._files() if number <= newest]
        for file in [*left_behind, *older[self._keep :]]:
            file.unlink(missing_ok=True)

    def _clear_half_written(self) -> None:
        # A process killed while writing leaves its temporary file; the state folder's lock makes it ours to remove.
        for path in self.folder.glob(".round-*"):
            path.unlink(missing_ok=True)

    def _what_is_left(self, failed: Path) -> str:
        try:
            left = [round_number for round_number, path in self._files() if path != failed or path.exists()]
        except OSError:
            left = []
        kept = f"the one of round {left[0]} is kept" if left else "there is no earlier one"
        return f"{kept}, training goes on"


def _encode(checkpoint: Checkpoint, manifest: Manifest) -> bytes:
    arrays = {
        "block": checkpoint.block.values,
        "embedding": checkpoint.embedding.values,
        "theta": checkpoint.theta,
        "live_embedding": checkpoint.live_embedding,
        **{f"moment.{name}": values for name, values in checkpoint.moments.items()},
    }
    for name, state in (("block", checkpoint.block), ("embedding", checkpoint.embedding)):
        if state.momentum is not None:
            arrays[f"{name}.momentum"] = state.momentum
    arrays = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in arrays.items()}
    notes = {"format": FORMAT, "run": manifest.digest.hex(), "run_id": manifest.run_id}
    for name, state in (("block", checkpoint.block), ("embedding", checkpoint.embedding)):
        notes |= {
            f"{name}.subject": str(state.subject),
            f"{name}.round": str(state.round),
            f"{name}.samples": str(state.samples),
            f"{name}.digest": state.digest.hex(),
            f"{name}.certificate": base64.b64encode(state.certificate).decode(),
            f"{name}.pending": repr(float(checkpoint.pending.get(state.subject, 0.0))),
        }
    for name, values in arrays.items():
        if name not in _IN_STATES:
            notes[f"{name}.sha256"] = hashlib.sha256(values.data).hexdigest()
    notes["sha256"] = _digest_of_notes(notes)
    encoded: bytes = encode_safetensors(arrays, metadata=notes)
    return encoded


def _digest_of_notes(notes: Mapping[str, str]) -> str:
    rows = (f"{key}\0{value}\n" for key, value in sorted(notes.items()) if key != "sha256")
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def _decode(path: Path, manifest: Manifest) -> Checkpoint:
    # Before anything is read into memory: a file many times larger than any checkpoint of this run is not one.
    values = sum(manifest.parameters(subject) for subject in (0, EMBEDDING))
    if path.stat().st_size > 8 * 4 * values + (1 << 20):
        raise _UnusableError("larger than any checkpoint of this run")
    try:
        with safe_open(path, framework="numpy") as file:
            notes: dict[str, str] = file.metadata() or {}
            _check_owner(notes, manifest)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise _UnusableError(f"damaged or half-written ({error})") from error
    try:
        return _rebuild(notes, arrays, manifest)
    except (KeyError, ValueError) as error:
        raise _UnusableError(f"damaged ({error})") from error


def _check_owner(notes: Mapping[str, str], manifest: Manifest) -> None:
    if notes.get("format") != FORMAT:
        raise _UnusableError("not a checkpoint of this version")
    if notes.get("run") != manifest.digest.hex():
        raise _UnusableError(f"of another run ({notes.get('run_id', 'unnamed')})")
    if notes.get("sha256") != _digest_of_notes(notes):
        raise _UnusableError("damaged (its notes do not hash to their digest)")


def _rebuild(notes: Mapping[str, str], arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> Checkpoint:
    block = _state("block", notes, arrays, manifest)
    embedding = _state("embedding", notes, arrays, manifest)
    if embedding.subject != EMBEDDING or not 0 <= block.subject < manifest.model.blocks:
        raise _UnusableError("damaged (of a block that this run does not have)")
    for name, values in arrays.items():
        if name in _IN_STATES:
            continue
        if values.dtype != np.float32 or hashlib.sha256(values.data).hexdigest() != notes[f"{name}.sha256"]:
            raise _UnusableError(f"damaged ({name} does not hash to its digest)")
    for name, state in (("theta", block), ("live_embedding", embedding)):
        if arrays[name].shape != state.values.shape or not np.isfinite(arrays[name]).all():
            raise _UnusableError(f"damaged ({name} has the wrong shape or is not finite)")
    return Checkpoint(
        block=block,
        embedding=embedding,
        theta=arrays["theta"],
        live_embedding=arrays["live_embedding"],
        pending={block.subject: _pending("block", notes), EMBEDDING: _pending("embedding", notes)},
        moments={name.removeprefix("moment."): array for name, array in arrays.items() if name.startswith("moment.")},
    )


def _pending(name: str, notes: Mapping[str, str]) -> float:
    pending = float(notes[f"{name}.pending"])
    if not 0 <= pending <= MAX_SAMPLES:  # false for NaN too
        raise _UnusableError(f"damaged (the pending samples of {name} are out of range)")
    return pending


def _state(name: str, notes: Mapping[str, str], arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> State:
    values, subject = arrays[name], int(notes[f"{name}.subject"])
    momentum = arrays[f"{name}.momentum"] if manifest.has_momentum else None
    if momentum is not None and (momentum.dtype != np.float32 or momentum.shape != values.shape):
        raise _UnusableError(f"damaged (the momentum of {name} has the wrong shape)")
    if values.dtype != np.float32 or subject not in manifest.subjects:
        raise _UnusableError(f"damaged ({name} is not a state of this run)")
    if values.shape != (manifest.parameters(subject),):
        raise _UnusableError(f"damaged ({name} has {values.size} values instead of {manifest.parameters(subject)})")
    number, samples = int(notes[f"{name}.round"]), int(notes[f"{name}.samples"])
    if not (0 <= number <= MAX_ROUND and 0 <= samples <= MAX_SAMPLES):
        raise _UnusableError(f"damaged (round or samples of {name} are out of range)")
    state = State.make(
        subject,
        number,
        values,
        samples=samples,
        certificate=base64.b64decode(notes[f"{name}.certificate"], validate=True),
        momentum=momentum,
    )
    if state.digest.hex() != notes[f"{name}.digest"]:
        raise _UnusableError(f"damaged ({name} does not hash to its digest)")
    return state
