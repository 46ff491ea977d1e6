"""Who leads a round: a total order that everyone computes alike (docs/protocol.md §6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


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
    suffix = _suffix(run_digest, subject, round_number)
    return sorted(set(peer_ids), key=lambda peer_id: hashlib.sha256(peer_id.encode() + suffix).digest())


def first_in_order(
    encoded_ids: Sequence[bytes], *, run_digest: bytes, subject: int, round_number: int, limit: int
) -> npt.NDArray[np.int64]:
    """The first ``limit`` of `leader_order` as indices into many peers: what a group of a large swarm is made of.

    Parameters
    ----------
    encoded_ids : sequence of bytes
        Peer ids, ASCII, each once.
    run_digest, subject, round_number
        As in `leader_order`.
    limit : int
        How many are wanted.
    """
    suffix = _suffix(run_digest, subject, round_number)
    sha256 = hashlib.sha256
    digests = [sha256(encoded + suffix).digest() for encoded in encoded_ids]
    # The first eight bytes of different digests are equal once in 2^64 pairs; the few that are wanted are sorted fully.
    heads = np.frombuffer(b"".join(digest[:8] for digest in digests), dtype=">u8")
    nearest = np.argpartition(heads, limit)[:limit] if limit < len(heads) else np.arange(len(heads))
    return np.array(sorted(nearest.tolist(), key=digests.__getitem__), dtype=np.int64)


def _suffix(run_digest: bytes, subject: int, round_number: int) -> bytes:
    return run_digest + subject.to_bytes(4, "big", signed=True) + round_number.to_bytes(8, "big")
