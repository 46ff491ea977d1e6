"""What is told about a model folder: as values, and as a card for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockswarm.model.config import SIZES, recipe_name
from blockswarm.model.windows import context_rule
from blockswarm.swarm.manifest import Manifest, subject_name

if TYPE_CHECKING:
    from blockswarm.model.mixing import Readout
    from blockswarm.swarm.evaluation import Evaluation


@dataclass(frozen=True)
class StateSummary:
    """What is told about one state in a folder."""

    subject: int
    file: str
    parameters: int
    file_bytes: int
    """Size of its file."""
    round: int
    samples: int
    digest: bytes
    voters: int
    """Replicas that signed its certificate; 0 without one."""
    members: int
    """Replicas on the list of its round."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: the digest in hex."""
        return {**vars(self), "digest": self.digest.hex()}


@dataclass(frozen=True)
class ModelSummary:
    """What is told about a folder that was written."""

    folder: Path
    manifest: Manifest
    states: tuple[StateSummary, ...]
    """The embedding's, then those of the blocks."""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(state.parameters for state in self.states)

    @property
    def file_bytes(self) -> int:
        """Size of all states' files."""
        return sum(state.file_bytes for state in self.states)

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "folder": str(self.folder),
            "run_id": self.manifest.run_id,
            "digest": self.manifest.digest.hex(),
            "parameters": self.parameters,
            "bytes": self.file_bytes,
            "states": [state.as_json() for state in self.states],
        }


def model_card(summary: ModelSummary, evaluations: Mapping[Readout, Evaluation] | None = None) -> str:
    """The card as Markdown.

    Parameters
    ----------
    summary : ModelSummary
        The folder.
    evaluations : mapping, optional
        By readout, what was measured with these states.
    """
    manifest = summary.manifest
    parts = [
        f"# {manifest.run_id}",
        "A byte-level language model trained by a blockswarm: its blocks were trained apart from each other, without "
        "back-propagation between them, and are joined when the model is read out.",
        _table(("what", "figure"), _facts(summary)),
        "## States",
        _table(
            ("subject", "round", "samples", "certified by", "parameters", "bytes", "digest"),
            [_state(state) for state in summary.states],
        ),
        f"A sample is one training sequence of the context's length. {_digest_rule(manifest)}",
        "## Cross-entropy",
        _measured(manifest, evaluations or {}),
        "## How to use it",
        f'```sh\nblockswarm generate --checkpoint {_folder(summary)} "The " --seed 1\n'
        f"blockswarm evaluate --checkpoint {_folder(summary)} --max-bytes all\n```",
        f'```python\nfrom blockswarm.swarm import LocalModel\n\nmodel = LocalModel.open("{_folder(summary)}")\n'
        'print(model.generate("The ", max_bytes=64, seed=1))\n```',
        "Neither needs a network. `swarm.toml` is the manifest of the run: all settings of model and training.",
    ]
    return "\n\n".join(parts) + "\n"


def _digest_rule(manifest: Manifest) -> str:
    """How the digest of a state follows from its file; see `blockswarm.model.layout.digest_of_chunks`."""
    rule = "the SHA-256 over the SHA-256 of each 1 MiB of the values as little-endian float32"
    if manifest.has_momentum:
        return (
            "The digest names a state's values together with its outer momentum, which no file here holds: it is the "
            f"SHA-256 over the digest of the values ({rule}) and that of the momentum, formed the same way and kept in "
            "the file's notes as `momentum_digest`. Reading the folder checks it."
        )
    return f"The digest is {rule}; reading the folder checks it."


def _facts(summary: ModelSummary) -> list[tuple[str, str]]:
    manifest, model = summary.manifest, summary.manifest.model
    size = next((name for name, config in SIZES.items() if config == model), "of its own")
    recipe = recipe_name(manifest.recipe) or "of its own"
    return [
        ("run", f"`{manifest.run_id}`, manifest `{manifest.digest.hex()}`"),
        (
            "size",
            f"{size}: {model.kind}, {model.blocks} blocks of {model.layers} layers, width {model.dim}, "
            f"context {model.context} bytes",
        ),
        ("parameters", f"{summary.parameters:,} in all, {manifest.parameters(0):,} in a block"),
        ("recipe", recipe),
        ("data", f"`{manifest.data.name}`"),
        *_counts_fact(manifest),
        ("states", f"{summary.file_bytes:,} bytes in {len(summary.states)} files (safetensors, float32)"),
    ]


def _counts_fact(manifest: Manifest) -> list[tuple[str, str]]:
    if manifest.counts is None:
        return []
    counts = manifest.counts
    told = (
        f"n-gram counts of order {counts.order} in {counts.bytes:,} bytes, digest `{counts.digest}`, mixed into the "
        f"parallel readout with weight {counts.weight:g}"
    )
    return [("counts", told)]


def _state(state: StateSummary) -> tuple[str, ...]:
    if state.members:
        certified = f"{state.voters} of {state.members} replicas"
    else:
        certified = "nobody" if state.round else "nobody: it is the genesis"
    return (
        subject_name(state.subject),
        str(state.round),
        f"{state.samples:,}",
        certified,
        f"{state.parameters:,}",
        f"{state.file_bytes:,}",
        f"`{state.digest.hex()}`",
    )


def _measured(manifest: Manifest, evaluations: Mapping[Readout, Evaluation]) -> str:
    if not evaluations:
        return "Not measured. `blockswarm evaluate --checkpoint` measures it, without a network."
    sample = next(iter(evaluations.values())).sample
    rows = [
        (name, str(one.score.bytes), f"{one.score.nats_per_byte:.4f}", f"{one.score.bits_per_byte:.4f}", _interval(one))
        for name, one in evaluations.items()
    ]
    return (
        _table(("readout", "bytes", "nats per byte", "bits per byte", "95 % interval, nats"), rows)
        + f"\n\nMeasured with these states on {sample}. Context: {context_rule(manifest.model.context)}."
    )


def _interval(evaluation: Evaluation) -> str:
    return "–" if evaluation.score.ci95 is None else f"± {evaluation.score.ci95:.4f}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _folder(summary: ModelSummary) -> str:
    return summary.folder.resolve().name
