"""The manifest: everything the volunteers of one swarm must agree on, named by the hash of its canonical bytes.

``swarm.toml`` is for people, :meth:`Manifest.canonical` for hashing and the wire. The digest is the SHA-256 of the
canonical bytes and ``run_id`` is ``name-`` plus its first 12 hex digits; every handshake compares the full digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from blockswarm.dht.packing import PackingError, unpack
from blockswarm.model.config import RECIPES, SIZES, ModelConfig, Recipe
from blockswarm.model.layout import COUNTS, EMBEDDING, layout_of
from blockswarm.naming import option
from blockswarm.swarm.canonical import canonical_bytes, plain
from blockswarm.swarm.codec import FOR_RUNS
from blockswarm.swarm.errors import ManifestError, given_manifest
from blockswarm.swarm.genesis import genesis_of, update_bytes
from blockswarm.swarm.manifest_checks import check_counts, check_protocol, check_rounds, check_sizes, pick
from blockswarm.swarm.manifest_fields import (
    MAX_MANIFEST_BYTES,
    PROTOCOL_VERSION,
    SECTIONS,
    Averaging,
    Counts,
    Data,
    Document,
    Genesis,
    Limits,
    Rounds,
    as_argument,
    describe,
    read_dataclass,
)
from blockswarm.swarm.manifest_toml import emit, parse, read_file
from blockswarm.swarm.policy.phases import default_phases
from blockswarm.swarm.subjects import subject_name

__all__ = [
    "COUNTS",
    "DEFAULT_BANDWIDTH",
    "EMBEDDING",
    "PROTOCOL_VERSION",
    "Manifest",
    "create_manifest",
    "subject_name",
]

DEFAULT_BANDWIDTH = 20e6 / 8
"""What a volunteer is assumed to send when phases are laid out, bytes/s (20 Mbit/s, a common home uplink)."""


@dataclass(frozen=True)
class Manifest:
    """What all volunteers of one swarm agree on. Made by :func:`create_manifest` or read; always valid.

    Attributes
    ----------
    name : str
        Name of the run, the readable half of ``run_id``.
    protocol : int
        Protocol version all its peers speak.
    seed : int
        Seed of the initial parameters.
    genesis_time : float
        Start of round 1, Unix seconds; round ``r`` closes at ``genesis_time + r * rounds.seconds``.
    model, recipe, data, rounds, averaging, limits, genesis, counts
        The sections, each frozen; ``counts`` is None, and absent from the canonical bytes, in a run without any.
    """

    name: str
    protocol: int
    seed: int
    genesis_time: float
    model: ModelConfig
    recipe: Recipe
    data: Data
    rounds: Rounds
    averaging: Averaging
    limits: Limits
    genesis: Genesis
    counts: Counts | None = None

    @classmethod
    @given_manifest()
    def load(cls, path: str | Path) -> Manifest:
        """Read ``swarm.toml``; raises :class:`GivenManifestError` naming the file and every field at fault."""
        path = Path(path)
        text = read_file(path)
        return cls.from_toml(text, source=str(path))

    @classmethod
    def from_toml(cls, text: str, *, source: str = "manifest") -> Manifest:
        """Read a manifest from TOML ``text``; ``source`` names it in errors."""
        return cls.from_mapping(parse(text, source), source=source)

    @classmethod
    def from_canonical(cls, data: bytes, *, source: str = "manifest") -> Manifest:
        """Read the canonical bytes of a manifest, as peers send them; anything but canonical is refused."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{source}: {len(data)} bytes, more than the {MAX_MANIFEST_BYTES} a manifest may have")
        try:
            raw = unpack(data, max_bytes=MAX_MANIFEST_BYTES)
        except PackingError as error:
            raise ManifestError(f"{source}: not the bytes of a manifest; fetch it again from another peer") from error
        manifest = cls.from_mapping(raw, source=source)
        if manifest.canonical() != data:
            raise ManifestError(f"{source}: not in canonical form; fetch it again from another peer")
        return manifest

    @classmethod
    def from_mapping(cls, raw: object, *, source: str = "manifest") -> Manifest:
        """Check plain data and freeze it.

        Raises
        ------
        ManifestError
            Naming ``source`` and all fields at fault at once.
        """
        if not isinstance(raw, dict):
            raise ManifestError(f"{source}: not a manifest (expected sections, got {type(raw).__name__})")
        check_protocol(raw.get("protocol"), source)
        document, problems = None, []
        try:
            document = Document.model_validate(raw)
        except ValidationError as error:
            problems += describe(error)
        model, model_problems = read_dataclass(ModelConfig, "model", raw.get("model"))
        recipe, recipe_problems = read_dataclass(Recipe, "recipe", raw.get("recipe"))
        problems += model_problems + recipe_problems
        if model is not None:
            problems += check_sizes(model, document.averaging.outer if document is not None else "none")
            problems += check_counts(document.counts if document is not None else None, model)
        if document is not None:
            problems += check_rounds(document.rounds)
            if model is not None and len(document.genesis.blocks) != model.blocks:
                problems.append(
                    f"genesis.blocks: {len(document.genesis.blocks)} digests for a model of {model.blocks} blocks"
                )
        if problems or document is None or model is None or recipe is None:
            raise ManifestError(
                f"{source}: {'; '.join(problems)} (correct this, or write a new manifest with `blockswarm init`)",
                problems,
            )
        sections = {name: getattr(document, name) for name in SECTIONS}
        return cls(
            name=document.name,
            protocol=document.protocol,
            seed=document.seed,
            genesis_time=document.genesis_time,
            model=model,
            recipe=recipe,
            **sections,
        )

    def to_mapping(self) -> dict[str, Any]:
        """The manifest as plain data (str, int, float, list, dict), the one shape both encodings share."""
        mapping = {
            "name": self.name,
            "protocol": self.protocol,
            "seed": self.seed,
            "genesis_time": self.genesis_time,
            "model": self.model.to_mapping(),
            "recipe": self.recipe.to_mapping(),
        }
        mapping |= {name: part.model_dump() for name in SECTIONS if (part := getattr(self, name)) is not None}
        result: dict[str, Any] = plain(mapping)
        return result

    def to_toml(self) -> str:
        """The manifest for people: TOML with a comment per field. Reading it back gives the same digest."""
        return emit(self.to_mapping(), self.run_id)

    def canonical(self) -> bytes:
        """The bytes that are hashed and sent: msgpack, map keys sorted, every float as float64."""
        return self._canonical

    @cached_property
    def _canonical(self) -> bytes:
        return canonical_bytes(self.to_mapping())

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes, 32 bytes: the identity of the swarm."""
        return hashlib.sha256(self._canonical).digest()

    @property
    def run_id(self) -> str:
        """``name-`` and the first 12 hex digits of the digest."""
        return f"{self.name}-{self.digest.hex()[:12]}"

    @property
    def subjects(self) -> range:
        """Everything that is averaged: the embedding (-1), then the blocks."""
        return range(EMBEDDING, self.model.blocks)

    @property
    def served(self) -> tuple[int, ...]:
        """Everything that has holders: the blocks, then ``COUNTS`` where the run has counts."""
        return (*range(self.model.blocks), *([COUNTS] if self.counts is not None else []))

    @property
    def has_momentum(self) -> bool:
        """Whether states hold an outer momentum beside their values; zeros at the genesis."""
        return self.averaging.outer == "nesterov"

    def momentum_of(self, subject: int) -> bool:
        """Whether states of ``subject`` hold one; the counts never change, so they have none."""
        return self.has_momentum and subject != COUNTS

    def parameters(self, subject: int) -> int:
        """Number of float32 values in the state of ``subject``; of the counts, how many would fill their file."""
        if subject == COUNTS:
            return self._counts.bytes // 4
        return layout_of(self.model, subject).size

    def genesis_digest(self, subject: int) -> bytes:
        """State digest of round 0 of ``subject``, 32 bytes; of the counts, that of their file."""
        if subject == COUNTS:
            return bytes.fromhex(self._counts.digest)
        return bytes.fromhex(self.genesis.embedding if subject == EMBEDDING else self.genesis.blocks[subject])

    @property
    def _counts(self) -> Counts:
        if self.counts is None:
            raise ManifestError(f"{self.run_id}: this run has no n-gram counts")
        return self.counts

    def verify_genesis(self, subject: int) -> NDArray[np.float32]:
        """The state of round 0, computed here from the seed and compared with the manifest.

        Returns
        -------
        ndarray of float32, shape [parameters(subject)]

        Raises
        ------
        ManifestError
            When this machine computes something else: another software version, or a manifest edited by hand.
        """
        values, digest = genesis_of(self.model, self.seed, subject, self.has_momentum)
        if digest != self.genesis_digest(subject):
            raise ManifestError(
                f"{self.run_id}: genesis of {subject_name(subject)} computed here is {digest.hex()[:12]}, the manifest "
                f"says {self.genesis_digest(subject).hex()[:12]}: the manifest was edited or made by another version"
            )
        return values


@given_manifest()
def create_manifest(
    *,
    name: str,
    now: float,
    size: str | ModelConfig = "tiny",
    recipe: str | Recipe = "default",
    train_samples: int | None = None,
    data: str = "docs",
    heldout_digest: str = "",
    round_seconds: float = 10.0,
    seed: int = 0,
    bandwidth: float = DEFAULT_BANDWIDTH,
    phases: Mapping[str, float] | None = None,
    tolerance: float | None = None,
    local_steps: str | int = "elastic",
    late: str = "carry",
    carry_discount: float = 0.5,
    group_size: int = 16,
    compression: str = "int4",
    max_weight_ratio: float = 4.0,
    max_norm_ratio: float = 10.0,
    outer: str = "none",
    outer_momentum: float = 0.5,
    outer_rate: float = 0.7,
    robust: str = "clip",
    clip_ratio: float = 2.0,
    directory_shards: int = 1,
    max_replicas: int = 256,
    counts: Counts | None = None,
) -> Manifest:
    """Make the manifest of a new swarm, with its genesis digests.

    Parameters
    ----------
    name : str
        Name of the run: a-z, 0-9 and "-", at most 32.
    now : float
        Unix seconds; the first round starts at the next whole second.
    size, recipe
        A key of ``SIZES`` and ``RECIPES``, or one's own.
    train_samples : int, optional
        Certified samples of a block with which its training ends, in place of the recipe's; 0 = never.
    data, heldout_digest : str
        Name of the corpus; hex SHA-256 of its held-out bytes where everyone has the same ones.
    round_seconds : float
        Length of a round, s.
    seed : int
        Seed of the initial parameters.
    bandwidth : float
        Upload a volunteer is expected to have, bytes/s; with the size of an update it gives the phase lengths.
    phases : mapping, optional
        ``{"meet": s, "scatter": s, "decide": s, "gather": s, "commit": s}`` instead of the computed lengths.
    tolerance : float, optional
        Allowed clock error, s; by default 2 s, or a quarter of a short round.
    local_steps, late, carry_discount, group_size
        As in :class:`Rounds`.
    compression, max_weight_ratio, max_norm_ratio, outer, outer_momentum, outer_rate, robust, clip_ratio
        As in :class:`Averaging`.
    directory_shards, max_replicas : int
        As in :class:`Limits`.
    counts : Counts, optional
        The n-gram counts to mix in; see ``blockswarm.swarm.counts.describe``.

    Raises
    ------
    GivenManifestError
        When a value is out of range, or the round is too short for the size of an update.
    """
    model = pick(size, SIZES, "model size")
    chosen_recipe = pick(recipe, RECIPES, "recipe").to_mapping()
    if train_samples is not None:
        chosen_recipe["train_samples"] = train_samples
    problems = check_sizes(model, outer)
    if not (math.isfinite(round_seconds) and round_seconds > 0):
        problems.append(f"{option('round_seconds')} {round_seconds}: must be a positive number of seconds")
    if compression not in FOR_RUNS:
        problems.append(f"{option('compression')} {compression!r}: must be one of {', '.join(FOR_RUNS)}")
    if problems:
        raise ManifestError(f"new manifest: {'; '.join(problems)}", problems)
    genesis = {
        subject: genesis_of(model, seed, subject, outer == "nesterov")[1].hex()
        for subject in range(EMBEDDING, model.blocks)
    }
    if phases is None:
        try:
            phases = dataclasses.asdict(default_phases(round_seconds, update_bytes(model, compression), bandwidth))
        except ValueError as error:
            raise ManifestError(
                f"new manifest: {error}; give more with {option('round_seconds')}, or take a smaller model"
            ) from error
    raw = {
        "name": name,
        "protocol": PROTOCOL_VERSION,
        "seed": seed,
        "genesis_time": float(math.ceil(now)),
        "model": model.to_mapping(),
        "recipe": chosen_recipe,
        "data": {"name": data, "heldout_digest": heldout_digest},
        "rounds": {
            "seconds": float(round_seconds),
            **{phase: float(length) for phase, length in phases.items()},
            "tolerance": float(min(2.0, round_seconds / 4) if tolerance is None else tolerance),
            "local_steps": local_steps,
            "late": late,
            "carry_discount": float(carry_discount),
            "group_size": group_size,
        },
        "averaging": {
            "compression": compression,
            "max_weight_ratio": float(max_weight_ratio),
            "max_norm_ratio": float(max_norm_ratio),
            "outer": outer,
            "outer_momentum": float(outer_momentum),
            "outer_rate": float(outer_rate),
            "robust": robust,
            "clip_ratio": float(clip_ratio),
        },
        "limits": {"directory_shards": directory_shards, "max_replicas": max_replicas},
        "genesis": {
            "embedding": genesis[EMBEDDING],
            "blocks": [genesis[block] for block in range(model.blocks)],
        },
        **({} if counts is None else {"counts": counts.model_dump()}),
    }
    try:
        return Manifest.from_mapping(raw)
    except ManifestError as error:
        problems = [as_argument(problem) for problem in error.problems]
        raise ManifestError(f"new manifest: {'; '.join(problems)}", problems) from error
