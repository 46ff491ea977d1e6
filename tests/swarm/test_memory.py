"""What a volunteer needs in memory is told, with its parts, before a block is taken."""

from __future__ import annotations

from typing import Any

from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.memory import memory_estimate


def make(size: str = "tiny", **changes: Any) -> Manifest:
    return create_manifest(name="demo", now=0.0, size=size, round_seconds=600.0, **changes)


def test_the_memory_estimate_names_its_parts_and_grows_with_the_model() -> None:
    tiny, base = memory_estimate(make()), memory_estimate(make("base"))
    assert tiny.total == sum(getattr(tiny, part) for part in tiny.__dataclass_fields__)
    assert 400e6 < tiny.total < 600e6
    assert base.optimizer == 2 * base.parameters
    assert base.total > 3 * tiny.total
    assert "optimizer" in str(base)


def test_an_outer_momentum_is_kept_with_every_state() -> None:
    plain, outer = memory_estimate(make()), memory_estimate(make(outer="nesterov"))
    assert outer.states == plain.states + 4 * plain.parameters
