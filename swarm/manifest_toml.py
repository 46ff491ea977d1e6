"""A manifest as TOML for people: its file read, and written with one comment per field, sections in a fixed order."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest_fields import MAX_MANIFEST_BYTES, Document, Section, section_type

MOST_DOTS = 2000
"""In the text of a manifest. The parser keeps every beginning of a dotted key: memory grows with the square of its
parts, and 8 kB of one take 65 MB."""

_HEADINGS = {
    "model": "What is learned. One block is what one volunteer trains.",
    "recipe": "How it is learned.",
    "data": "What it is learned from.",
    "rounds": "Round r closes at genesis_time + r * seconds; the five phases fill its end.",
    "averaging": "How accepted updates become one.",
    "limits": "Bounds of the directory.",
    "genesis": "Digests of the states of round 0, computed from the seed by every peer.",
    "counts": "N-gram counts that are mixed into the blocks' predictions.",
}

_COMMENTS = {
    "model.kind": '"transformer" or "mlp"',
    "model.dim": "width of the embedding and of every layer",
    "model.blocks": "number of blocks, each one interval of noise levels; block 0 has the highest",
    "model.layers": "layers in each block",
    "model.heads": "attention heads in each layer",
    "model.context": "bytes in one training sequence",
    "model.previous_bytes": "embedding tables for bytes before the current one",
    "model.ngram_tables": "hashed embedding tables for the last 2, 3, ... bytes together",
    "model.ngram_rows": "rows in each of them",
    "model.ngram_width": "values in a row",
    "model.mlp_window": "bytes an MLP block sees",
    "recipe.sigma_min": "lowest noise level",
    "recipe.sigma_max": "highest noise level",
    "recipe.p_mean": "mean of ln(sigma)",
    "recipe.p_std": "standard deviation of ln(sigma)",
    "recipe.overlap": "how far intervals reach into each other, as a share of their log-width",
    "recipe.sigma_data": "scale of the clean embedding in the preconditioning",
    "recipe.weighting": 'weight of a sequence in the loss: "edm" or "unit"',
    "recipe.z_zero_share": "share of training sequences with z = 0",
    "recipe.batch": "sequences in one optimizer step",
    "recipe.optimizer": '"adamw", or "muon" for the matrices inside layers',
    "recipe.learning_rate": "peak learning rate",
    "recipe.warmup_samples": "certified samples over which the learning rate rises",
    "recipe.train_samples": "certified samples at which training ends; 0 = never",
    "recipe.settle_samples": "without an end: certified samples after which the rate falls as 1/sqrt; 0 = constant",
    "recipe.final_lr_share": "learning rate at the end, as a share of the peak",
    "recipe.weight_decay": "AdamW weight decay",
    "recipe.muon_rate": "Muon's peak rate",
    "recipe.betas": "AdamW betas",
    "recipe.grad_clip": "largest norm of a gradient",
}


def parse(text: str, source: str) -> dict[str, Any]:
    """A manifest's TOML as plain data, not looked at any further; `ManifestError`, naming ``source``, if it is none."""
    if len(text) > MAX_MANIFEST_BYTES or text.count(".") > MOST_DOTS:
        raise ManifestError(f"{source}: larger than {MAX_MANIFEST_BYTES} bytes or full of dots, as no manifest is")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # beside syntax: numbers of thousands of digits, deep nesting
        raise ManifestError(f"{source}: not valid TOML: {error}") from error


def read_file(path: Path) -> str:
    """The text of a manifest file; raises `ManifestError` when it cannot be read or cannot be one."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise ManifestError(
            f"{path}: cannot read the manifest: {error.strerror}; make one with `blockswarm init`"
        ) from error
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes, which no manifest is")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 text (byte {error.start}); is this the right file?") from error


def emit(mapping: Mapping[str, Any], run_id: str) -> str:
    """TOML text of a manifest's plain mapping.

    Floats are written so that reading gives the same float64, strings are escaped as TOML asks; comments are for the
    reader and not part of the digest.
    """
    lines = [
        f"# The manifest of {run_id}: what its volunteers agree on.",
        "# Its digest names the run; a changed value is another run. Comments and order do not count.",
        "",
    ]
    lines += [_line(key, value, f"{key}") for key, value in mapping.items() if not isinstance(value, dict)]
    for section, fields in mapping.items():
        if isinstance(fields, dict):
            lines += ["", f"# {_HEADINGS.get(section, section)}", f"[{section}]"]
            lines += [_line(key, value, f"{section}.{key}") for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, path: str) -> str:
    comment = _comment(path)
    text = f"{key} = {_value(value)}"
    return f"{text}  # {comment}" if comment else text


def _comment(path: str) -> str:
    if path in _COMMENTS:
        return _COMMENTS[path]
    section: Any = Document
    *parents, key = path.split(".")
    for part in parents:
        section = section_type(section, part)
    if isinstance(section, type) and issubclass(section, Section) and key in section.model_fields:
        return section.model_fields[key].description or ""
    return ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)  # the shortest text that reads back as the same float64
        return text if any(mark in text for mark in ".e") else f"{text}.0"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        if any(isinstance(item, str) for item in value):  # digests: one a line
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"a manifest holds no {type(value).__name__}")


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
