"""Rounds in one process: the peers' own arithmetic of updates, means and corrections, without a network."""

from __future__ import annotations

import numpy as np

from blockswarm.lab.plan import Averaging
from blockswarm.model.layout import EMBEDDING, Float32
from blockswarm.model.learner import BlockLearner
from blockswarm.peer.allreduce import reduce_part
from blockswarm.peer.ledger import correction, kept_share
from blockswarm.swarm.codec import decode, encode, encoded_size
from blockswarm.swarm.policy.outer import outer_step

CARRY = 1.0
"""Share of an update that was not accepted that stays with its worker."""


class Subject:
    """The certified state of a block or of the embedding, and the workers whose live weights follow it."""

    def __init__(self, number: int, state: Float32, workers: list[BlockLearner], settings: Averaging) -> None:
        self.state = state
        self.bytes_sent = 0
        """Bytes of updates and means on the wire, all workers together."""
        self._number, self._workers, self._settings = number, workers, settings
        self._velocity = np.zeros_like(state)

    def commit(self, random: np.random.Generator) -> None:
        """End a round: encode the updates, average the accepted ones, move the state and the live weights onto it.

        The first accepted worker reduces, and brings in again what encoding loses of the mean, as a peer does with its
        part.
        """
        settings = self._settings
        deltas = [self._live(worker) - self.state for worker in self._workers]
        sent = {str(n): self._travel(delta) for n, delta in enumerate(deltas)}
        weights = {n: 1.0 for n in sent if random.random() < settings.participation}
        old = self.state
        if weights:
            reducer = next(iter(weights))
            reduced = reduce_part(sent, weights, settings.compression, own_id=reducer)
            self.bytes_sent += len(reduced.data) * len(sent)
            mean = decode(reduced.data, old.size, settings.compression)
            step, self._velocity = outer_step(mean, self._velocity, momentum=settings.momentum, rate=settings.rate)
            self.state = old + step
            if reduced.owed is not None:
                sent[reducer] = sent[reducer] - reduced.owed
        for n, (worker, delta) in enumerate(zip(self._workers, deltas, strict=True)):
            part = sent[str(n)] if str(n) in weights else None
            change = correction(old, self.state, delta, part, kept_share(part is not None, "carry", CARRY))
            worker.add(*(None, change) if self._number == EMBEDDING else (change, None))

    def _live(self, worker: BlockLearner) -> Float32:
        theta, embedding = worker.read()
        return embedding if self._number == EMBEDDING else theta

    def _travel(self, delta: Float32) -> Float32:
        compression = self._settings.compression
        self.bytes_sent += encoded_size(delta.size, compression)
        return decode(encode(delta, compression), delta.size, compression)
