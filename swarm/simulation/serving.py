"""Clients of a simulated swarm: one holder of every block is asked at once, as the default readout does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blockswarm.swarm.route import FIRST_PATIENCE, FIRST_PATIENCE_PER_POSITION
from blockswarm.swarm.simulation.peers import TRAINING, Floats
from blockswarm.swarm.simulation.world import World

SAMPLED = 128
"""Requests of a round that are followed; each stands for its share of all."""

ATTEMPTS = 3
"""Holders of a block that a request tries, one after the other."""

CHOICES = 2
"""Holders that a client compares: it knows some from earlier requests (``swarm/route.py``)."""

FORWARD_SHARE = 1 / 3
"""Operations of reading a block out, of those of training on it."""

SHARED_MACHINE = 2.0
"""How much longer it takes beside training. Assumed: the two share the cores."""

BUSY = 0.95
"""Load from which on a holder refuses."""

BYTES_PER_POSITION = 4 * 256
"""Log-probabilities of one position, float32."""


@dataclass(frozen=True)
class Served:
    """Requests of one round."""

    requests: int
    """Requests that were made."""
    success: Floats
    """1 where a followed request was answered in time, shape [followed]."""
    latency: Floats
    """Seconds of those that were."""


def serve(world: World, begin: float, seconds: float) -> Served:
    """The requests of the ``seconds`` after ``begin``, all with ``begin``'s holders."""
    peers, shape, rng, clients = world.peers, world.shape, world.rng, world.scenario.clients
    there = peers.alive(begin)
    requests = int(rng.poisson(clients.per_peer_hour * there.sum() * seconds / 3600.0))
    followed = min(requests, SAMPLED)
    if not followed:
        return Served(requests, np.zeros(0), np.zeros(0))
    reached = (peers.stage == TRAINING) & peers.on_record(begin) & ~peers.hidden & (peers.side == 0)
    holders = np.flatnonzero(reached & (peers.block >= 0))
    holders = holders[np.argsort(peers.block[holders], kind="stable")]
    first = np.searchsorted(peers.block[holders], np.arange(shape.blocks + 1))
    count = np.diff(first)
    work = clients.positions * shape.sample_flops / shape.context * FORWARD_SHARE * SHARED_MACHINE
    service = work / peers.flops[holders]
    each = np.divide(requests / seconds, count, out=np.zeros(shape.blocks), where=count > 0)
    load = np.append(each, 0.0)[peers.block[holders]] * service
    wire = clients.positions * BYTES_PER_POSITION / peers.up[holders]
    usual = 2.0 * peers.delay[holders] + service + wire
    waits = service * load / np.maximum(1.0 - load, 0.05)

    patience = FIRST_PATIENCE + clients.positions * FIRST_PATIENCE_PER_POSITION
    answered = np.zeros((followed, shape.blocks), dtype=bool)
    latency = np.zeros((followed, shape.blocks))
    alive = there[holders]
    answers = np.zeros(len(holders))
    for _ in range(ATTEMPTS if len(holders) else 0):
        picks = first[:-1, None] + (rng.random((followed, shape.blocks, CHOICES)) * count[:, None]).astype(np.int64)
        picks = np.minimum(picks, len(holders) - 1)
        best = np.take_along_axis(picks, (usual + waits)[picks].argmin(axis=2)[..., None], axis=2)[..., 0]
        takes = usual[best] + waits[best] * rng.exponential(size=best.shape)
        good = alive[best] & (load[best] < BUSY) & (count > 0) & ~answered
        latency += np.where(answered, 0.0, np.where(good, takes, patience))
        np.add.at(answers, best[good], 1.0)
        answered |= good
    worst = latency.max(axis=1)
    success = answered.all(axis=1) & (worst <= clients.deadline_seconds)
    stands_for = requests / followed
    peers.send("serving", holders, answers * stands_for * clients.positions * BYTES_PER_POSITION)
    peers.receive("serving", holders, answers * stands_for * (clients.positions + 400))
    return Served(requests, success.astype(float), worst[success])
