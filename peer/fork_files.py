"""What a peer keeps on disk for the day two lines meet: its line's certificates, fork points, and a merge under way.

All of it is in the folder ``forks`` of the state folder, bounded, and may be deleted at the price of a merge. Files are
written in full or not at all; on reading nothing is believed, and what is damaged or of another run is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as encode_safetensors

from blockswarm.files import write_atomically
from blockswarm.peer.line import Line
from blockswarm.swarm.manifest import Manifest, subject_name
from blockswarm.swarm.statements import StatementError

MAX_VECTOR_BYTES = 1 << 30
"""Larger vectors are not kept: a fork of theirs ends without a merge."""

Float32 = NDArray[np.float32]


class ForkFiles:
    """Blocking reads and writes: call them in a thread.

    Parameters
    ----------
    state_dir : Path
        The peer's state folder, which is locked: nobody else writes here.
    manifest : Manifest
        The run; files of others are removed.
    """

    def __init__(self, state_dir: Path, manifest: Manifest) -> None:
        self.folder = state_dir / "forks"
        self._manifest = manifest

    # -- vectors ---------------------------------------------------------------------------------------------------

    def keep(self, kind: str, subject: int, values: Float32, notes: dict[str, Any]) -> None:
        """Write a vector with notes (plain JSON) under a name made of ``kind`` and subject. Raises `OSError`."""
        if values.nbytes > MAX_VECTOR_BYTES:
            raise OSError(27, f"{values.nbytes} bytes are more than are kept of {subject_name(subject)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        values = np.ascontiguousarray(values, dtype=np.float32)
        told = {
            "run": self._manifest.digest.hex(),
            "notes": json.dumps(notes),
            "sha256": hashlib.sha256(values.data).hexdigest(),
        }
        write_atomically(self._path(kind, subject), encode_safetensors({"values": values}, metadata=told), mode=0o600)

    def read(self, kind: str, subject: int) -> tuple[Float32, dict[str, Any]] | None:
        """What `keep` wrote; ``None`` (and no file any more) when it is not there, damaged, or of another run."""
        path = self._path(kind, subject)
        size = self._manifest.parameters(subject)
        try:
            if path.stat().st_size > 4 * size + (1 << 20):
                raise ValueError("too large")
            with safe_open(path, framework="numpy") as file:
                told = file.metadata() or {}
                values = file.get_tensor("values")
            if told.get("run") != self._manifest.digest.hex() or values.shape != (size,):
                raise ValueError("of another run")
            if values.dtype != np.float32 or hashlib.sha256(values.data).hexdigest() != told.get("sha256"):
                raise ValueError("damaged")
            if not np.isfinite(values).all():
                raise ValueError("not finite")
            notes = json.loads(told["notes"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, SafetensorError):
            _remove(path)
            return None
        return values, notes

    def drop(self, kind: str, subject: int) -> None:
        """Remove a vector, if the disk lets us."""
        _remove(self._path(kind, subject))

    def kinds(self, subject: int, prefix: str) -> list[str]:
        """Kinds of vectors of a subject that begin with ``prefix``."""
        end = f"-{subject}.safetensors"
        if not self.folder.exists():
            return []
        names = (path.name for path in self.folder.iterdir())
        return sorted(name.removesuffix(end) for name in names if name.startswith(prefix) and name.endswith(end))

    def _path(self, kind: str, subject: int) -> Path:
        return self.folder / f"{kind}-{subject}.safetensors"

    def keep_only(self, subjects: tuple[int, ...]) -> None:
        """Remove everything of subjects that this peer has left, and files that a killed process had not finished."""
        kept = tuple(f"-{subject}{end}" for subject in subjects for end in ("", ".safetensors", ".json"))
        if self.folder.exists():
            for path in self.folder.iterdir():
                if not path.name.endswith(kept):
                    _remove(path)

    # -- notes -----------------------------------------------------------------------------------------------------

    def write_line(self, subject: int, packed: bytes) -> None:
        """Keep the certificates of a line (`Line.pack`). Raises `OSError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"line-{subject}", packed, mode=0o600)

    def read_line(self, subject: int) -> Line | None:
        """The line as it was kept, every certificate verified; ``None`` when there is none that can be used."""
        path = self.folder / f"line-{subject}"
        try:
            return Line.unpack(path.read_bytes(), self._manifest, subject)
        except FileNotFoundError:
            return None
        except (OSError, StatementError):
            _remove(path)
            return None

    def write_journal(self, subject: int, journal: dict[str, Any]) -> None:
        """Keep what is left of a merge and which forks were merged before. Raises `OSError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"run": self._manifest.digest.hex()} | journal)
        write_atomically(self.folder / f"merges-{subject}.json", text.encode(), mode=0o600)

    def read_journal(self, subject: int) -> dict[str, Any]:
        """What `write_journal` wrote for this run; empty when there is none."""
        try:
            journal: dict[str, Any] = json.loads((self.folder / f"merges-{subject}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return journal if isinstance(journal, dict) and journal.get("run") == self._manifest.digest.hex() else {}


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # nothing depends on its being gone: it is looked at again with suspicion
        path.unlink(missing_ok=True)
