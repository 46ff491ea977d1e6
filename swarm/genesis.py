"""The state a run begins with, and how many bytes an update of it has on the wire."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, layout_of, state_digest
from blockswarm.swarm.codec import encoded_size


def genesis_of(model: ModelConfig, seed: int, subject: int, momentum: bool) -> tuple[NDArray[np.float32], bytes]:
    """Values of the state of round 0, float32 ``[n]``, and its digest, with a momentum of zeros if there is one."""
    values = layout_of(model, subject).genesis(seed, subject)
    return values, state_digest(values, np.zeros_like(values) if momentum else None)


def update_bytes(model: ModelConfig, compression: str) -> int:
    """Bytes that a volunteer's updates of a block and of the embedding have, encoded."""
    return sum(encoded_size(layout_of(model, subject).size, compression) for subject in (0, EMBEDDING))
