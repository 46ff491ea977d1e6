"""What a simulation needs to know of a manifest: sizes, rhythm and rules."""

from __future__ import annotations

from dataclasses import dataclass

from blockswarm.model.config import ModelConfig
from blockswarm.swarm.codec import encoded_size
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from blockswarm.swarm.policy.phases import PhaseLengths, RoundTimes, times_of
from blockswarm.swarm.policy.robust import Robust


@dataclass(frozen=True, kw_only=True)
class SwarmShape:
    """The manifest's part of a simulation. Sizes in bytes; tuples hold first the block's, then the embedding's."""

    run_digest: bytes
    blocks: int
    values: tuple[int, int]
    update_bytes: tuple[int, int]
    """Encoded size of one update."""
    state_bytes: tuple[int, int]
    """What a newcomer fetches: values and outer momentum, float32."""
    batch: int
    """Samples of an optimizer step."""
    context: int
    """Bytes of a sample."""
    sample_flops: float
    """Operations of training one sample, forward and backward."""
    local_steps: int | None
    """Steps of a round; ``None``: as many as fit."""
    carry: float
    """Share of work that missed its round which stays."""
    seconds: float
    lengths: PhaseLengths
    group_size: int
    shards: int
    max_norm_ratio: float
    max_weight_ratio: float
    robust: Robust
    clip_ratio: float

    @classmethod
    def of(cls, manifest: Manifest) -> SwarmShape:
        """The shape of a manifest."""
        values = manifest.parameters(0), manifest.parameters(EMBEDDING)
        kept = 8 if manifest.has_momentum else 4
        steps = manifest.rounds.local_steps
        averaging = manifest.averaging
        return cls(
            run_digest=manifest.digest,
            blocks=manifest.model.blocks,
            values=values,
            update_bytes=(
                encoded_size(values[0], averaging.compression),
                encoded_size(values[1], averaging.compression),
            ),
            state_bytes=(kept * values[0], kept * values[1]),
            batch=manifest.recipe.batch,
            context=manifest.model.context,
            sample_flops=training_flops(manifest.model),
            local_steps=None if isinstance(steps, str) else steps,
            carry=manifest.rounds.carry_discount if manifest.rounds.late == "carry" else 0.0,
            seconds=manifest.rounds.seconds,
            lengths=manifest.rounds.lengths,
            group_size=manifest.rounds.group_size,
            shards=manifest.limits.directory_shards,
            max_norm_ratio=averaging.max_norm_ratio,
            max_weight_ratio=averaging.max_weight_ratio,
            robust=averaging.robust,
            clip_ratio=averaging.clip_ratio,
        )

    def times(self, number: int) -> RoundTimes:
        """The moments of a round, in seconds since the beginning."""
        return times_of(number, 0.0, self.seconds, self.lengths)


def default_manifest(size: str = "tiny") -> Manifest:
    """What is simulated where no manifest is given: ``blockswarm init`` of that size with its defaults."""
    return create_manifest(name="simulated", now=0.0, size=size)


def training_flops(model: ModelConfig) -> float:
    """Operations to train one sample: six for each weight that is multiplied and byte, and attention."""
    per_layer = 12 * model.dim**2
    weights = model.layers * per_layer + 2 * model.dim * 256 + model.ngram_tables * model.ngram_width * model.dim
    attention = 12 * model.layers * model.context * model.dim if model.kind == "transformer" else 0
    return float(model.context * (6 * weights + attention))
