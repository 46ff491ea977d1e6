"""The certified state of a block or of the embedding, and what a round makes of its workers' updates.

The mathematics are the peers': who is accepted (``policy/acceptance``), the robust mean, its encoding and what that
loses (``peer/allreduce``), the outer step, and what stays pending with whom (``peer/ledger``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from blockswarm.model.layout import EMBEDDING, Float32
from blockswarm.model.learner import BlockLearner
from blockswarm.peer.allreduce import reduce_part, squared_norm
from blockswarm.peer.ledger import Ledger, correction, kept_share
from blockswarm.swarm.codec import Compression, decode, encode
from blockswarm.swarm.manifest_fields import Averaging
from blockswarm.swarm.policy.acceptance import PartReport, decide
from blockswarm.swarm.policy.outer import outer_step


@dataclass
class Worker:
    """A virtual volunteer."""

    id: str
    learner: BlockLearner
    trained: int = 0
    """Samples since the beginning."""
    clock: float = 0.0
    """Simulated moment at which its last step ended."""
    uploads: list[float] = field(default_factory=list)
    """Seconds that its uploads took."""
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    """Of its block and of the embedding."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a manifest says of averaging, and a policy of late work."""

    averaging: Averaging
    compression: Compression
    late: Literal["carry", "drop"]
    discount: float
    """Share of a late update that stays when others committed without it."""


class Subject:
    """One of the vectors that are averaged.

    Parameters
    ----------
    number : int
        Of the block, or ``EMBEDDING``.
    state : float32 ``[n]``
        The genesis.
    workers : list of Worker
        Whose live weights follow it.
    rules : Rules
        How.
    """

    def __init__(self, number: int, state: Float32, workers: list[Worker], rules: Rules) -> None:
        self.state = state
        self.samples = 0
        """Certified ones."""
        self._number, self._workers, self._rules = number, workers, rules
        self._velocity = np.zeros_like(state)
        self._deltas: dict[str, Float32] = {}
        self._counts: dict[str, int] = {}
        for worker in workers:
            worker.ledgers[number] = Ledger()

    def snapshot(self, worker: Worker, live: Float32) -> None:
        """Take what ``worker`` sends this round, given its weights, float32 ``[n]``; it may train on."""
        self._counts[worker.id] = worker.ledgers[self._number].snapshot(worker.trained)
        self._deltas[worker.id] = live - self.state

    def settle(self, late: Mapping[str, str]) -> Collection[str]:
        """End a round in which everybody has taken a snapshot; who was accepted.

        Parameters
        ----------
        late : mapping
            Workers whose updates did not come in time, and why.
        """
        rules, settings = self._rules, self._rules.averaging
        samples, deltas = self._counts, self._deltas
        sent = {id: self._travel(delta) for id, delta in deltas.items()}
        reports = {id: PartReport(squared_norm(part), late.get(id, "")) for id, part in sent.items()}
        verdict = decide(
            {id: float(count) for id, count in samples.items()},
            [reports],
            max_norm_ratio=settings.max_norm_ratio,
            max_weight_ratio=settings.max_weight_ratio,
            robust=settings.robust,
            clip_ratio=settings.clip_ratio,
        )
        old = self.state
        if verdict.weights:
            reducer = next(iter(verdict.weights))
            reduced = reduce_part(
                sent, verdict.weights, rules.compression, verdict.clips, settings.robust, own_id=reducer
            )
            step = decode(reduced.data, old.size, rules.compression)
            if settings.outer == "nesterov":
                step, self._velocity = outer_step(
                    step, self._velocity, momentum=settings.outer_momentum, rate=settings.outer_rate
                )
            self.state = old + step
            self.samples += int(sum(verdict.weights.values()))
            if reduced.owed is not None:
                sent[reducer] = sent[reducer] - reduced.owed
        for worker in self._workers:
            accepted = worker.id in verdict.weights
            # Without a commit nothing has moved: carried work stays whole, as with peers; dropped work is dropped.
            discount = rules.discount if verdict.weights else 1.0
            kept = kept_share(accepted, rules.late, discount)
            part = sent[worker.id] if accepted else None
            self._add(worker, correction(old, self.state, deltas[worker.id], part, kept))
            worker.ledgers[self._number].settle(samples[worker.id], kept)
        return verdict.weights.keys()

    def _travel(self, delta: Float32) -> Float32:
        return decode(encode(delta, self._rules.compression), delta.size, self._rules.compression)

    def _add(self, worker: Worker, change: Float32) -> None:
        if self._number == EMBEDDING:
            worker.learner.add(None, change)
        else:
            worker.learner.add(change, None)
            worker.learner.set_certified(self.samples)
