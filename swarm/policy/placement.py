"""Which block a volunteer takes, and when it moves to another (docs/protocol.md §11).

A block is as strong as what remains of it when its strongest replica leaves: one fast machine alone is one unplugged
cable away from nothing. Volunteers go where the swarm is weakest. Replicas that are still JOINING count, so that
newcomers see each other; and because twenty newcomers may look before any of them has announced, everyone looks again
after announcing (:func:`settle`) and all come to the same assignment.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

MOVE_GAIN = math.inf
"""A move to a block that is not bare must make the weaker of the two this many times as strong at least. None does:
measured speeds swing with whatever else the machines do, and only a bare block is worth a move for sure."""


@dataclass(frozen=True)
class Replica:
    """A live volunteer as others see it."""

    peer_id: str
    block: int
    speed: float = 0.0
    """Training throughput, samples/s; 0 when not measured yet."""
    joining: bool = False
    """Still fetching its state: counted as capacity, but it cannot hand the state on."""


class HolderRecord(Protocol):
    """What placement reads of a directory record."""

    @property
    def peer_id(self) -> str: ...
    @property
    def block(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def samples_per_second(self) -> float: ...
    @property
    def expires(self) -> float: ...


def replicas_on_record(records: Iterable[HolderRecord], now: float) -> list[Replica]:
    """Directory records as replicas; who is offline or whose record expired by ``now`` (Unix seconds) is left out."""
    return [
        Replica(record.peer_id, record.block, record.samples_per_second, record.state == "JOINING")
        for record in records
        if record.state != "OFFLINE" and record.expires > now
    ]


def choose_block(blocks: int, replicas: Iterable[Replica], *, own_id: str) -> int:
    """The block whose loss would hurt most: bare ones first, then the weakest.

    Parameters
    ----------
    blocks : int
        Number of blocks of the model.
    replicas : iterable of Replica
        Everyone on record; an entry of ``own_id`` is ignored.
    own_id : str
        Own peer id. Among equally weak blocks its hash decides, so that newcomers spread.

    Returns
    -------
    int
        Block number, 0 … blocks-1.
    """
    speeds = _speeds(blocks, [replica for replica in replicas if replica.peer_id != own_id])
    return min(range(blocks), key=lambda block: (_strength(speeds[block]), peer_hash(own_id, block)))


def settle(blocks: int, replicas: Iterable[Replica], *, own_id: str, own_block: int) -> int:
    """Look again after announcing ``own_block``: the block to take, given everyone else who announced meanwhile.

    Everyone with the same view computes the same assignment of all JOINING replicas: the weakest block is filled by one
    who announced it, if any, in the order of hashed peer ids; who is one too many gets a place nobody announced. An
    assignment that is balanced already is left as it is, so looking twice changes nothing.

    Parameters
    ----------
    blocks, replicas, own_id
        As in :func:`choose_block`; ``replicas`` may or may not contain this peer.
    own_block : int
        The block this peer has announced.

    Returns
    -------
    int
        ``own_block``, or the block to announce instead.
    """
    others = [replica for replica in replicas if replica.peer_id != own_id and 0 <= replica.block < blocks]
    joining = [replica for replica in others if replica.joining] + [Replica(own_id, own_block, joining=True)]
    joining.sort(key=lambda replica: peer_hash(replica.peer_id))
    settled = [replica for replica in others if not replica.joining]
    assumed = _assumed_speed(settled)
    speeds = _speeds(blocks, settled)
    waiting = {block: [r.peer_id for r in joining if r.block == block] for block in range(blocks)}
    open_places = []
    for _ in joining:
        block = min(range(blocks), key=lambda b: (_strength(speeds[b]), not waiting[b], b))
        speeds[block].append(assumed)
        if waiting[block]:
            if waiting[block].pop(0) == own_id:
                return block
        else:
            open_places.append(block)
    surplus = [replica.peer_id for replica in joining if replica.peer_id in waiting[replica.block]]
    return open_places[surplus.index(own_id)]


def should_move(
    blocks: int,
    replicas: Sequence[Replica],
    *,
    own_id: str,
    own_block: int,
    turn: int,
    gain: float = MOVE_GAIN,
) -> int | None:
    """The block to move to, or ``None`` to stay.

    One replica moves at a time: it belongs to the strongest block, and its hash with ``turn`` is the lowest there. It
    moves to a bare block, or when the weaker of the two blocks becomes at least ``gain`` times as strong. It never
    leaves its own block without a replica that holds the state.

    Parameters
    ----------
    blocks : int
        Number of blocks of the model.
    replicas : sequence of Replica
        Everyone on record, with or without this peer.
    own_id, own_block
        This peer and the block it trains.
    turn : int
        Number of the round, so that the choice of who moves changes.
    gain : float
        Threshold of the improvement, a ratio above 1.
    """
    others = [replica for replica in replicas if replica.peer_id != own_id]
    mine = next((r for r in replicas if r.peer_id == own_id), Replica(own_id, own_block))
    stay = [replica for replica in others if replica.block == own_block and not replica.joining]
    if not stay:
        return None
    assumed = _assumed_speed(others)
    own_speed = mine.speed if mine.speed > 0 else assumed
    before = _speeds(blocks, [*others, Replica(own_id, own_block, own_speed)])
    strongest = max(range(blocks), key=lambda block: (_strength(before[block]), -block))
    mover = min([own_id, *(replica.peer_id for replica in stay)], key=lambda peer_id: peer_hash(peer_id, turn))
    if own_block != strongest or mover != own_id:
        return None
    target = min(
        (block for block in range(blocks) if block != own_block),
        key=lambda block: (_strength(before[block]), peer_hash(own_id, block)),
        default=own_block,
    )
    if target == own_block:
        return None
    if not before[target]:
        return target
    remaining = sum(before[own_block]) - own_speed
    weaker_before = min(sum(before[own_block]), sum(before[target]))
    weaker_after = min(remaining, sum(before[target]) + own_speed)
    return target if weaker_after >= gain * weaker_before else None


def join_delay(rng: random.Random, longest: float = 1.0) -> float:
    """Seconds a newcomer waits before it looks for a block, and again before it looks a second time."""
    return rng.uniform(0.0, longest)


def _strength(speeds: Sequence[float]) -> tuple[bool, float, float]:
    """Sort key of a block, weakest first: bare, then what is left without the strongest replica, then all of it."""
    return bool(speeds), sum(speeds) - max(speeds, default=0.0), sum(speeds)


def _assumed_speed(replicas: Sequence[Replica]) -> float:
    """What a replica that was never measured is taken for: the median of the measured ones."""
    measured = [replica.speed for replica in replicas if replica.speed > 0]
    return statistics.median(measured) if measured else 1.0


def _speeds(blocks: int, replicas: Sequence[Replica]) -> list[list[float]]:
    """Speeds of the replicas of each block, in a fixed order so that sums are the same for everyone."""
    assumed = _assumed_speed(replicas)
    speeds: list[list[float]] = [[] for _ in range(blocks)]
    for replica in sorted(replicas, key=lambda replica: replica.peer_id):
        if 0 <= replica.block < blocks:
            speeds[replica.block].append(replica.speed if replica.speed > 0 else assumed)
    return speeds


def peer_hash(peer_id: str, number: int = 0) -> bytes:
    """What decides among equals: every peer computes the same, and nobody can choose it."""
    return hashlib.sha256(f"{peer_id}\0{number}".encode()).digest()
