"""What a volunteer of a swarm needs in memory, from the manifest alone: told before a block is taken."""

from __future__ import annotations

from dataclasses import dataclass

from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import EMBEDDING, mlp_byte_width
from blockswarm.swarm.manifest import Manifest

PROCESS_BYTES = 430 * 10**6
"""Before any model: Python with torch and hivemind 300 MB, torch's own buffers after its first step 80, p2pd 50."""

COUNTS_PROCESS_BYTES = 280 * 10**6
"""Of who serves the n-gram counts: Python with hivemind, which imports torch, and p2pd. Their file is mapped."""

KEPT_STATES = 3
"""Certified states a peer holds to serve sessions that pinned one."""

KEPT_READERS = 3
"""Pairs of block state and embedding that are ready to answer, at most: two copies of a block each."""

SESSION_BYTES = (16 << 20, 256 << 20)
"""Least and most room for the caches of clients' sessions; between them, room for ``FULL_SESSIONS`` windows."""

FULL_SESSIONS = 64


EARLY_BYTES = 16 << 20
"""Most that lies at a holder of z that came before the call that wants it, of all senders together."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose for one volunteer."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    states: int = 0
    """Certified states kept for serving, and the buffers of one round (snapshot, update, sum, candidate)."""
    readers: int = 0
    """Copies of states that answer requests, once there are any."""
    sessions: int = 0
    """Caches of clients' sessions, once there are many."""
    early: int = 0
    """z of sweeps that came before the client's call."""
    process: int = 0

    @property
    def total(self) -> int:
        """Sum of all, bytes."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in vars(self).items())
        return f"{self.total / 1e6:,.0f} MB ({parts})"


def counts_estimate() -> MemoryEstimate:
    """What a volunteer needs who serves the n-gram counts: nothing that grows with them."""
    return MemoryEstimate(process=COUNTS_PROCESS_BYTES)


def memory_estimate(manifest: Manifest) -> MemoryEstimate:
    """Estimate what one volunteer needs who trains a block, every block being the same size.

    Parameters, gradients and AdamW's two moments are exact (float32 each). Activations count what back-propagation
    keeps per layer (inputs of the norms and projections, attention, the 4x hidden layer), the 256-way logits, and what
    the tables of n-grams and of the MLP's window give, with its gradient; the fused kernel keeps no attention matrices.

    Returns
    -------
    MemoryEstimate
    """
    model, batch = manifest.model, manifest.recipe.batch
    flat = 4 * (manifest.parameters(0) + manifest.parameters(EMBEDDING))
    looked_up = model.ngram_tables * model.ngram_width
    if model.kind == "mlp":
        looked_up += model.mlp_window * mlp_byte_width(model)
    per_position = 4 * (18 * model.dim * model.layers + 8 * model.dim + 6 * 256 + 2 * looked_up)
    return MemoryEstimate(
        parameters=flat,
        gradients=flat,
        optimizer=2 * flat,
        activations=batch * model.context * per_position,
        states=(KEPT_STATES + 1) * (2 if manifest.has_momentum else 1) * flat + 3 * flat,
        readers=KEPT_READERS * 2 * flat,
        sessions=session_bytes(model),
        early=EARLY_BYTES,
        process=PROCESS_BYTES,
    )


def cache_bytes(model: ModelConfig) -> int:
    """What a block remembers of one window of a session: keys and values (float32), and the bytes (as int64)."""
    attended = 2 * model.layers * model.dim * 4 if model.kind == "transformer" else 0
    return model.context * (attended + 8)


def session_bytes(model: ModelConfig) -> int:
    """Most bytes that a holder gives to the caches of sessions."""
    least, most = SESSION_BYTES
    return min(most, max(least, FULL_SESSIONS * cache_bytes(model)))
