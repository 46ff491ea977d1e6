"""What is learned (``ModelConfig``) and how (``Recipe``): frozen data, checked in one place. Imports no torch.

Size and recipe are chosen apart: any of ``SIZES`` works with any of ``RECIPES``.
"""

from __future__ import annotations

import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from blockswarm.model.errors import ModelError

VOCABULARY = 256
"""Tokens are bytes."""

REFERENCE_DIM = 96
"""The width at which ``Recipe.learning_rate`` holds; wider models learn at ``REFERENCE_DIM / dim`` of it."""


@dataclass(frozen=True, kw_only=True)
class _Checked(ABC):
    """Plain dict round trip and field checks shared by both configurations."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build from a plain mapping (TOML, JSON, msgpack) and validate.

        Parameters
        ----------
        mapping : Mapping
            Field names to values; lists stand for tuples, integers for floats.

        Returns
        -------
        Self
            The validated configuration.

        Raises
        ------
        ModelError
            On an unknown or missing key, a value of the wrong type, or a value out of range; names the field.
        """
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(str(key) for key in mapping if key not in known)
        if unknown:
            raise ModelError(f"{cls.__name__}: unknown field {unknown[0]!r}; known are {', '.join(known)}")
        hints = typing.get_type_hints(cls)
        values = {}
        for name, field in known.items():
            if name in mapping:
                values[name] = _convert(cls.__name__, name, mapping[name], hints[name])
            elif field.default is MISSING:
                raise ModelError(f"{cls.__name__}: field {name!r} is missing")
        made = cls(**values)
        made.validate()
        return made

    def to_mapping(self) -> dict[str, Any]:
        """All fields as plain values (tuples as lists), ready for TOML, JSON or msgpack."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @abstractmethod
    def validate(self) -> None:
        """Raise ``ModelError`` naming the first field out of range."""

    def _require(self, holds: bool, field: str, need: str) -> None:
        if not holds:
            raise ModelError(f"{type(self).__name__}.{field} = {getattr(self, field)!r}: {need}")

    def _require_between(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        # Written so that NaN fails too.
        self._require(low <= value <= high, field, f"must lie between {low} and {high}")


def _convert(owner: str, name: str, value: Any, hint: Any) -> Any:
    """``value`` as the annotated type, or ``ModelError``; booleans are never numbers here."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and number:
        return float(value)
    if hint is int and number and isinstance(value, int):
        return value
    origin = typing.get_origin(hint)
    if origin is Literal and value in typing.get_args(hint):
        return value
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(typing.get_args(hint)):
        return tuple(_convert(owner, name, v, h) for v, h in zip(value, typing.get_args(hint), strict=True))
    wanted = " or ".join(typing.get_args(hint)) if origin is Literal else getattr(hint, "__name__", str(hint))
    wanted = str(hint) if isinstance(hint, types.GenericAlias) else wanted
    raise ModelError(f"{owner}.{name} = {value!r}: must be {wanted}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Checked):
    """The shape of the model: ``blocks`` independent blocks around one shared byte embedding."""

    kind: Literal["transformer", "mlp"] = "transformer"
    """Causal self-attention, or a fixed window of the last bytes instead of it."""
    dim: int
    """Width of the residual stream and of the shared embedding."""
    blocks: int
    """Number of blocks B the noise range is cut into; each is trained by its own group of volunteers."""
    layers: int
    """Layers in each block."""
    heads: int
    """Attention heads (kind ``transformer``); ``dim / heads`` must be an even whole number (rotary positions)."""
    context: int
    """Bytes a block sees at once, and the length of a training sequence (one sample)."""
    previous_bytes: int = 3
    """Extra input tables for the bytes x_{t-1} … x_{t-previous_bytes}."""
    ngram_tables: int = 0
    """Hashed input tables for the last 2, 3, … bytes taken together; 0 = none."""
    ngram_rows: int = 16384
    """Rows of each of them, shared by all n-grams whose hash falls on one."""
    ngram_width: int = 16
    """Values in a row."""
    mlp_window: int = 16
    """Bytes in the window of kind ``mlp``, the current one included."""

    def validate(self) -> None:
        """Raise ``ModelError`` naming the first field out of range."""
        self._require(self.kind in ("transformer", "mlp"), "kind", "must be transformer or mlp")
        self._require_between("dim", 8, 16384)
        self._require_between("blocks", 1, 256)
        self._require_between("layers", 1, 256)
        self._require_between("heads", 1, 1024)
        self._require_between("context", 2, 65536)
        self._require_between("previous_bytes", 0, 16)
        self._require_between("ngram_tables", 0, 8)
        self._require_between("ngram_rows", 2, 1 << 22)
        self._require_between("ngram_width", 1, 1024)
        self._require_between("mlp_window", 1, 1024)
        self._require(
            self.dim % (2 * self.heads) == 0, "heads", f"dim / heads must be even and whole, dim is {self.dim}"
        )


@dataclass(frozen=True, kw_only=True)
class Recipe(_Checked):
    """The denoising objective of a block and the optimiser that follows it."""

    sigma_min: float = 1.0
    """Lowest noise level of the whole model (the last block's end)."""
    sigma_max: float = 10.0
    """Highest noise level of the whole model (the first block's end)."""
    p_mean: float = -1.2
    """Mean of ln σ before truncation."""
    p_std: float = 1.2
    """Standard deviation of ln σ before truncation."""
    overlap: float = 0.05
    """γ: each block trains on its interval widened by this share of its length in ln σ, on both sides."""
    sigma_data: float = 0.5
    """σ_data of the EDM preconditioning."""
    weighting: Literal["edm", "unit"] = "edm"
    """Weight of a sequence in the loss: w(σ) of the EDM, or one."""
    z_zero_share: float = 0.0
    """Share of the sequences of a batch trained with z = 0 at the readout's noise level instead of a noisy target."""
    batch: int = 16
    """Sequences (samples) in one optimiser step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """``muon`` moves the matrices of the layers by orthogonalised momentum; everything else stays with AdamW."""
    learning_rate: float = 5e-3
    """AdamW's peak rate at width ``REFERENCE_DIM``; see ``peak_rate``."""
    warmup_samples: int = 320
    """Certified samples over which the rate rises to its peak."""
    train_samples: int = 0
    """Certified samples at which a cosine decay ends; 0 = no end, see ``settle_samples``."""
    settle_samples: int = 0
    """Without an end: certified samples after which the rate falls as one over the square root; 0 = stays constant."""
    final_lr_share: float = 0.1
    """Share of the peak rate that is left when a decay has ended; no schedule goes below it."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    muon_rate: float = 0.02
    """Muon's peak rate: the size of a step's change of a matrix, as the root mean square of its values times the
    square root of the larger side. Follows the same schedule as ``learning_rate``, but not the width."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's averaging coefficients of the gradient and of its square."""
    grad_clip: float = 1.0
    """Largest Euclidean norm of a gradient (block and embedding together); longer ones are scaled down to it."""

    def validate(self) -> None:
        """Raise ``ModelError`` naming the first field out of range."""
        self._require_between("sigma_min", 1e-4, 1e4)
        self._require_between("sigma_max", 1e-4, 1e4)
        self._require(self.sigma_min < self.sigma_max, "sigma_max", f"must be above sigma_min {self.sigma_min}")
        self._require_between("p_mean", -20.0, 20.0)
        self._require_between("p_std", 0.05, 20.0)
        self._require_between("overlap", 0.0, 0.5)
        self._require_between("sigma_data", 1e-3, 1e3)
        self._require(self.weighting in ("edm", "unit"), "weighting", "must be edm or unit")
        self._require_between("z_zero_share", 0.0, 1.0)
        self._require_between("batch", 1, 65536)
        self._require(self.optimizer in ("adamw", "muon"), "optimizer", "must be adamw or muon")
        self._require(0.0 < self.learning_rate <= 1.0, "learning_rate", "must be above 0 and at most 1")
        self._require(0.0 < self.muon_rate <= 1.0, "muon_rate", "must be above 0 and at most 1")
        self._require_between("warmup_samples", 0, 10**15)
        self._require_between("train_samples", 0, 10**15)
        self._require_between("settle_samples", 0, 10**15)
        self._require_between("final_lr_share", 0.0, 1.0)
        self._require_between("weight_decay", 0.0, 1.0)
        self._require(all(0.0 <= beta < 1.0 for beta in self.betas), "betas", "both must be at least 0 and below 1")
        self._require(0.0 < self.grad_clip < math.inf, "grad_clip", "must be above 0 and finite")

    def peak_rate(self, dim: int) -> float:
        """The highest learning rate for a model of width ``dim``: Adam's step per weight shrinks as 1 / width."""
        return self.learning_rate * min(1.0, REFERENCE_DIM / dim)

    def rate(self, dim: int, samples: float) -> float:
        """The learning rate after ``samples`` certified samples of this block, for a model of width ``dim``."""
        return self.peak_rate(dim) * self.rate_share(samples)

    def rate_share(self, samples: float) -> float:
        """The schedule: the share of its peak that a rate has after ``samples`` certified samples.

        Linear warm-up; then a cosine down to ``final_lr_share`` at ``train_samples``, or, without an end, constant and
        after ``settle_samples`` falling as 1/√samples.
        """
        share = 1.0
        if self.train_samples:
            done = min(1.0, samples / self.train_samples)
            share = self.final_lr_share + (1.0 - self.final_lr_share) * 0.5 * (1.0 + math.cos(math.pi * done))
        elif self.settle_samples and samples > self.settle_samples:
            share = max(self.final_lr_share, math.sqrt(self.settle_samples / samples))
        if samples < self.warmup_samples:
            share *= samples / self.warmup_samples
        return share


SIZES: dict[str, ModelConfig] = {
    "tiny": ModelConfig(dim=96, blocks=3, layers=2, heads=3, context=128, ngram_tables=5),
    "small": ModelConfig(dim=256, blocks=3, layers=4, heads=8, context=256, ngram_tables=5),
    "base": ModelConfig(dim=512, blocks=3, layers=4, heads=8, context=256, ngram_tables=5),
}
"""Named sizes; ``base`` has the width, depth and block count of the BlockTrain paper's main run."""

RECIPES: dict[str, Recipe] = {
    "default": Recipe(z_zero_share=0.75, optimizer="muon", muon_rate=0.04, learning_rate=2e-2, settle_samples=8192),
    "paper": Recipe(),
}
"""Named recipes. ``paper`` is the objective as published; ``default`` is the best found (docs/results.md): z = 0 in
three quarters of the sequences trains what the parallel readout asks for, Muon moves the layers' matrices, and a high
rate for the rest lets rows of the n-gram tables learn from the few times they are met."""


def recipe_name(recipe: Recipe) -> str | None:
    """The name under which ``recipe`` is known, wherever its training ends; ``None`` for one's own."""
    for name, known in RECIPES.items():
        if replace(known, train_samples=recipe.train_samples) == recipe:
            return name
    return None
