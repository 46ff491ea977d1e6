"""What a volunteer needs in memory is told, with its parts, before a block is taken."""

from __future__ import annotations

from typing import Any

from blockswarm.model.config import ModelConfig
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.memory import memory_estimate


def make(size: str | ModelConfig = "tiny", **changes: Any) -> Manifest:
    return create_manifest(name="demo", now=0.0, size=size, round_seconds=600.0, **changes)


def test_the_memory_estimate_names_its_parts_and_grows_with_the_model() -> None:
    tiny, base = memory_estimate(make()), memory_estimate(make("base"))
    assert tiny.total == sum(getattr(tiny, part) for part in tiny.__dataclass_fields__)
    assert 400e6 < tiny.total < 650e6
    assert base.optimizer == 2 * base.parameters
    assert base.total > 3 * tiny.total
    assert "optimizer" in str(base)


def test_an_outer_momentum_is_kept_with_every_state() -> None:
    plain, outer = memory_estimate(make()), memory_estimate(make(outer="nesterov"))
    assert outer.states == plain.states + 4 * plain.parameters


def test_tables_that_are_small_but_give_much_for_every_byte_are_counted() -> None:
    """A small manifest may ask for 64 KB a byte read: told before a block is taken, not found out in training."""
    plain = ModelConfig(dim=8, blocks=1, layers=1, heads=1, context=256)
    wide = ModelConfig(dim=8, blocks=1, layers=1, heads=1, context=256, ngram_tables=8, ngram_rows=2, ngram_width=1024)
    positions = memory_estimate(make(wide)).activations / (4 * 8 * 1024 * 2)
    assert positions > 256 * make(wide).recipe.batch
    assert memory_estimate(make(wide)).activations > 5 * memory_estimate(make(plain)).activations
