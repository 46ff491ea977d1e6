"""What a target is, and what all of them share: one run, a few identities, and values that compare by their bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blockswarm.dht.identity import Identity
from blockswarm.dht.packing import pack
from blockswarm.model.config import ModelConfig
from blockswarm.swarm.manifest import Manifest, create_manifest

MIB = 1 << 20

NOW = 1_764_489_600.0
"""The time at which records and rounds are read, Unix seconds."""

IDENTITIES = tuple(Identity(bytes([number]) * 32) for number in range(1, 5))
"""The same on every run, and so are their signatures."""


@dataclass(frozen=True)
class Target:
    """One decoder of foreign bytes."""

    name: str
    run: Callable[[bytes], bool]
    """Whether the bytes were accepted; raises when a promise is broken."""
    seeds: Callable[[], Sequence[bytes]]
    """Inputs that are accepted, for others to be made of."""
    memory: int = 2 * MIB
    """Bytes that it may take for any input of at most ``longest`` bytes, the input itself not counted."""
    longest: int = MIB
    """Input that is worth trying; most decoders look at the length first."""


@functools.cache
def manifest() -> Manifest:
    """The run that everything belongs to: round 3 is in progress at `NOW`."""
    return create_manifest(
        name="fuzz",
        now=NOW - 50.0,
        size=ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=8),
        round_seconds=20.0,
        compression="int8",
        group_size=2,
        seed=1,
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values of plain msgpack types are equal, NaN included."""
    return pack(one) == pack(other)
