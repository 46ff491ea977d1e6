"""Placement of many volunteers at once: the decisions of `placement` over arrays, for whoever looks at a whole swarm.

Each function decides what the scalar form beside it decides for every peer by itself; tests hold them together. Sums
may differ from the scalar form's in the last bit, since they are taken in another order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.placement import MOVE_GAIN, peer_hash

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Strengths:
    """How strong each block is; weaker is what `choose_block` takes first. Arrays of shape [blocks]."""

    replicas: Ints
    """Replicas on record."""
    rest: Floats
    """Speed that is left when the fastest replica goes, samples/s."""
    total: Floats
    """Speed of all, samples/s."""

    def key(self, block: int) -> tuple[bool, float, float]:
        """What blocks are compared by, weakest first."""
        return bool(self.replicas[block]), float(self.rest[block]), float(self.total[block])

    def weakest(self) -> Ints:
        """The weakest block, or all that are equally weak, ascending."""
        chosen = np.arange(len(self.replicas))
        for values in (self.replicas > 0, self.rest, self.total):
            of_chosen = values[chosen]
            chosen = chosen[of_chosen == of_chosen.min()]
        return chosen


def assumed_speed(speed: Floats) -> float:
    """What a replica that was never measured is taken for; ``speed`` [n] in samples/s, 0 where not measured."""
    measured = speed[speed > 0]
    return float(np.median(measured)) if len(measured) else 1.0


def strengths_of(blocks: int, block: Ints, speed: Floats, *, assumed: float | None = None) -> Strengths:
    """The strengths of all blocks.

    Parameters
    ----------
    blocks : int
        Number of blocks of the model.
    block, speed : ndarray, shape [replicas]
        Everyone on record: block, and samples/s (0 where not measured).
    assumed : float, optional
        Speed of those not measured, where the caller knows it already.
    """
    assumed = assumed_speed(speed) if assumed is None else assumed
    speed = np.where(speed > 0, speed, assumed)
    total = np.bincount(block, weights=speed, minlength=blocks)
    fastest = np.zeros(blocks)
    np.maximum.at(fastest, block, speed)
    return Strengths(np.bincount(block, minlength=blocks), total - fastest, np.asarray(total, dtype=np.float64))


def choose_blocks(strengths: Strengths, own_ids: Sequence[str]) -> Ints:
    """`placement.choose_block` of newcomers who all look at the same moment, shape [newcomers].

    Parameters
    ----------
    strengths : Strengths
        Everyone on record but the newcomers.
    own_ids : sequence of str
        Their peer ids.
    """
    weakest = strengths.weakest()
    if len(weakest) == 1:
        return np.full(len(own_ids), weakest[0], dtype=np.int64)
    tied = [int(block) for block in weakest]
    return np.array([min(tied, key=lambda block: peer_hash(own_id, block)) for own_id in own_ids], dtype=np.int64)


def settle_all(
    blocks: int,
    block: Ints,
    speed: Floats,
    *,
    joining_ids: Sequence[str],
    joining_blocks: Sequence[int],
) -> list[int]:
    """`placement.settle` of everyone who is JOINING, given one view that all of them share.

    Parameters
    ----------
    blocks : int
        Number of blocks of the model.
    block, speed : ndarray, shape [replicas]
        Those on record that are not JOINING.
    joining_ids, joining_blocks : sequence
        Who is, and the block each has announced.

    Returns
    -------
    list of int
        The block each of them takes, in the order given.
    """
    assumed = assumed_speed(speed)
    strengths = strengths_of(blocks, block, speed, assumed=assumed)
    order = sorted(range(len(joining_ids)), key=lambda index: peer_hash(joining_ids[index]))
    waiting: list[deque[int]] = [deque() for _ in range(blocks)]
    for index in order:
        waiting[joining_blocks[index]].append(index)
    replicas = strengths.replicas.tolist()
    total = strengths.total.tolist()
    fastest = (strengths.total - strengths.rest).tolist()

    def key(number: int) -> tuple[bool, float, float, bool, int]:
        rest = total[number] - fastest[number]
        return replicas[number] > 0, rest, total[number], not waiting[number], number

    heap = [key(number) for number in range(blocks)]
    heapq.heapify(heap)
    taken = dict.fromkeys(order, -1)
    open_places = deque[int]()
    for _ in order:
        chosen = heap[0][-1]
        replicas[chosen] += 1
        total[chosen] += assumed
        fastest[chosen] = max(fastest[chosen], assumed)
        if waiting[chosen]:
            taken[waiting[chosen].popleft()] = chosen
        else:
            open_places.append(chosen)
        heapq.heapreplace(heap, key(chosen))
    for index in order:
        if taken[index] < 0:
            taken[index] = open_places.popleft()
    return [taken[index] for index in range(len(joining_ids))]


def choose_mover(
    blocks: int,
    block: Ints,
    speed: Floats,
    joining: Bools,
    *,
    id_of: Callable[[int], str],
    turn: int,
    gain: float = MOVE_GAIN,
) -> tuple[int, int] | None:
    """Who of all replicas moves in this turn and to which block: the one whom `placement.should_move` tells to.

    Parameters
    ----------
    blocks : int
        Number of blocks of the model.
    block, speed, joining : ndarray, shape [replicas]
        Everyone on record.
    id_of : callable
        Peer id of a replica by its index; asked of few.
    turn : int
        Number of the round.
    gain : float
        As in `placement.should_move`.

    Returns
    -------
    (int, int) or None
        Index of the replica and its new block.
    """
    strengths = strengths_of(blocks, block, speed)
    bare = bool((strengths.replicas == 0).any())
    if blocks < 2 or (not bare and gain == float("inf")):
        return None
    strongest = max(range(blocks), key=lambda number: (strengths.key(number), -number))
    stay = np.flatnonzero((block == strongest) & ~joining)
    if len(stay) < 2:
        return None
    mover = int(min(stay, key=lambda index: peer_hash(id_of(int(index)), turn)))
    target = min(
        (number for number in range(blocks) if number != strongest),
        key=lambda number: (strengths.key(number), peer_hash(id_of(mover), number)),
    )
    if not strengths.replicas[target]:
        return mover, target
    own_speed = float(speed[mover]) if speed[mover] > 0 else assumed_speed(speed)
    before = strengths.total[[strongest, target]]
    weaker_after = min(before[0] - own_speed, before[1] + own_speed)
    return (mover, target) if weaker_after >= gain * before.min() else None
