"""Who leads a round: a total order that everyone computes alike (docs/protocol.md §6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def leader_order(peer_ids: Iterable[str], *, run_digest: bytes, subject: int, round_number: int) -> list[str]:
    """Peers sorted by a hash that changes every round, so that leading is shared and cannot be chosen.

    Parameters
    ----------
    peer_ids : iterable of str
        Base58 peer ids; duplicates count once.
    run_digest : bytes
        The manifest's SHA-256.
    subject : int
        Block number, or ``EMBEDDING``.
    round_number : int
        Round in question.

    Returns
    -------
    list of str
        The first one alive leads; the second may take over once.
    """
    suffix = run_digest + subject.to_bytes(4, "big", signed=True) + round_number.to_bytes(8, "big")
    return sorted(set(peer_ids), key=lambda peer_id: hashlib.sha256(peer_id.encode() + suffix).digest())
