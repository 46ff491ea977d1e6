"""What has been trained and measured, kept by the name of what it depends on, so that nothing is done twice.

A kept file is written in full or not at all, and carries the digest of its own arrays. One that does not hash to it
is set aside under another name and said so; what it held is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from blockswarm.lab.errors import LabError
from blockswarm.lab.training import Trained
from blockswarm.lab.writing import write_file
from blockswarm.model.scoring import STRETCH, TextScore, score_of

Arrays = dict[str, NDArray[Any]]


class Store:
    """A folder of trainings and measurements.

    Parameters
    ----------
    folder : Path
        Made when first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set_aside: list[str] = []
        """Damaged files that were found, each as ``name: reason``."""

    def load_training(self, key: str) -> Trained | None:
        """The training called ``key``, or None."""
        found = self._read(f"training-{key}.safetensors")
        if found is None:
            return None
        arrays, notes = found
        count = json.loads(notes["blocks"])
        return Trained(
            thetas=[arrays[f"theta.{b}"] for b in range(count)],
            embeddings=[arrays[f"embedding.{b}"] for b in range(count)],
            curve=[(int(step), float(loss)) for step, loss in json.loads(notes["curve"])],
            watched=[(int(step), float(loss)) for step, loss in json.loads(notes["watched"])],
            seconds=float(notes["seconds"]),
            bytes_sent=int(notes["bytes_sent"]),
        )

    def save_training(self, key: str, trained: Trained) -> None:
        """Keep a training."""
        arrays: Arrays = {f"theta.{b}": theta for b, theta in enumerate(trained.thetas)}
        arrays |= {f"embedding.{b}": table for b, table in enumerate(trained.embeddings)}
        notes = {
            "blocks": str(len(trained.thetas)),
            "curve": json.dumps(trained.curve),
            "watched": json.dumps(trained.watched),
            "seconds": repr(trained.seconds),
            "bytes_sent": str(trained.bytes_sent),
        }
        self._write(f"training-{key}.safetensors", arrays, notes)

    def load_scores(self, key: str) -> dict[str, Score]:
        """The measurements called ``key``, readout by readout; empty if there are none."""
        found = self._read(f"scores-{key}.safetensors")
        if found is None:
            return {}
        arrays, notes = found
        return {
            name: Score(TextScore(entry["nats"], entry["bytes"], entry["ci95"]), arrays[name])
            for name, entry in json.loads(notes["scores"]).items()
        }

    def save_scores(self, key: str, scores: Mapping[str, Score]) -> None:
        """Keep measurements; those kept before under the same key stay."""
        merged = {**self.load_scores(key), **scores}
        notes = {
            name: {"nats": score.whole.nats_per_byte, "bytes": score.whole.bytes, "ci95": score.whole.ci95}
            for name, score in merged.items()
        }
        arrays: Arrays = {name: score.stretches for name, score in merged.items()}
        self._write(f"scores-{key}.safetensors", arrays, {"scores": json.dumps(notes)})

    def _write(self, name: str, arrays: Arrays, notes: dict[str, str]) -> None:
        arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
        notes = {**notes, "sha256": _digest(arrays, notes)}
        write_file(self.folder / name, save(arrays, metadata=notes))

    def _read(self, name: str) -> tuple[Arrays, dict[str, str]] | None:
        path = self.folder / name
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                notes = dict(file.metadata() or {})
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        except OSError as error:
            raise LabError(f"{path}: cannot be read: {error.strerror or error}") from error
        except SafetensorError as error:
            self._put_aside(path, f"damaged or half-written ({error})")
            return None
        claimed = notes.pop("sha256", "")
        if claimed != _digest(arrays, notes):
            self._put_aside(path, "damaged (does not hash to its digest)")
            return None
        return arrays, notes

    def _put_aside(self, path: Path, reason: str) -> None:
        target = path.with_suffix(".damaged")
        path.replace(target)
        self.set_aside.append(f"{path}: {reason}; kept as {target.name}, and made again")


class Score:
    """How well a readout predicts a text.

    Parameters
    ----------
    whole : TextScore
        Over the whole text.
    stretches : float64 ``[n]``
        Mean cross-entropy of each stretch of ``STRETCH`` bytes, for paired comparisons.
    """

    def __init__(self, whole: TextScore, stretches: NDArray[np.float64]) -> None:
        self.whole, self.stretches = whole, stretches

    @classmethod
    def of(cls, log_probs: NDArray[np.float64]) -> Score:
        """Summarise ln p of a text's bytes, float64 ``[m]``."""
        full = len(log_probs) // STRETCH * STRETCH
        return cls(score_of(log_probs), -log_probs[:full].reshape(-1, STRETCH).mean(axis=1))


def _digest(arrays: Arrays, notes: Mapping[str, str]) -> str:
    content = hashlib.sha256(json.dumps(sorted(notes.items())).encode())
    for name, array in sorted(arrays.items()):
        content.update(f"{name}{array.dtype}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).data if array.size else b"")
    return content.hexdigest()
