"""Carrying out a plan: every block trained on its own, workers and the embedding averaged between rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from blockswarm.lab.averaging import Subject
from blockswarm.lab.denoiser import DenoiserLearner
from blockswarm.lab.plan import Plan
from blockswarm.lab.text import LabText
from blockswarm.model.corpus import batches
from blockswarm.model.layout import EMBEDDING, Float32, block_layout, embedding_layout, philox
from blockswarm.model.learner import BlockLearner

Progress = Callable[[int, int], None]
"""Worker steps done and in all."""

Watch = Callable[["Trained"], float]
"""Cross-entropy of the model as it stands, nats per byte."""


@dataclass
class Trained:
    """What a plan gave."""

    thetas: list[Float32]
    """Weights of each block."""
    embeddings: list[Float32]
    """The table each block is read out with: one and the same where it is shared."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Steps done, and the workers' mean training cross-entropy since the point before, nats per byte."""
    watched: list[tuple[int, float]] = field(default_factory=list)
    """Steps done, and what a watch saw then."""
    seconds: float = 0.0
    """Wall seconds of training, all workers one after another."""
    bytes_sent: int = 0
    """Bytes the workers would have put on the wire."""


def train(
    plan: Plan, text: LabText, *, device: str = "cpu", progress: Progress | None = None, watch: Watch | None = None
) -> Trained:
    """Train all blocks of ``plan`` in one process, one worker after another within each round.

    Parameters
    ----------
    plan : Plan
        What to train.
    text : LabText
        Training bytes.
    device : str
        As ``BlockLearner`` takes it.
    progress : callable, optional
        Called after every round.
    watch : callable, optional
        Called as often as the plan says.

    Returns
    -------
    Trained
        The same, bit for bit, for the same plan, text, machine and thread count.
    """
    began = time.monotonic()
    crowd = _Crowd(plan, text, device)
    trained = Trained([], [])
    done = rounds = 0
    while done < plan.steps:
        steps = min(plan.averaging.every, plan.steps - done)
        loss = crowd.round(steps)
        done, rounds = done + steps, rounds + 1
        trained.curve.append((done, loss))
        if progress:
            progress(done * plan.work // plan.steps, plan.work)
        if watch and plan.watch and rounds % plan.watch == 0:
            trained.watched.append((done, watch(Trained(*crowd.read()))))
    trained.thetas, trained.embeddings = crowd.read()
    trained.seconds = time.monotonic() - began
    trained.bytes_sent = sum(subject.bytes_sent for subject in crowd.subjects)
    return trained


class _Crowd:
    """The workers of all blocks."""

    def __init__(self, plan: Plan, text: LabText, device: str) -> None:
        self._plan = plan
        self._random = np.random.Generator(philox("participation", plan.seed))
        self._blocks = [
            [_learner(plan, text, block, replica, device) for replica in range(plan.averaging.replicas)]
            for block in range(plan.model.blocks)
        ]
        everyone = [worker for workers in self._blocks for worker in workers]
        self._everyone = everyone
        self._first_table = everyone[0].read()[1]
        self._averages = {id(worker): _Average(plan.ema) for worker in everyone} if plan.ema else {}
        settings = plan.averaging
        self._states = [Subject(b, w[0].read()[0], w, settings) for b, w in enumerate(self._blocks)]
        tables = [everyone] if plan.embedding == "shared" else self._blocks
        self._tables = [Subject(EMBEDDING, self._first_table.copy(), workers, settings) for workers in tables]
        # What one worker alone would average with itself needs no round.
        self.subjects = [
            subject
            for subject, workers in zip((*self._states, *self._tables), (*self._blocks, *tables), strict=True)
            if len(workers) > 1
        ]

    def round(self, steps: int) -> float:
        """Local steps of every worker, then the averages; the mean cross-entropy of the steps."""
        losses = []
        for worker in self._everyone:
            for _ in range(steps):
                losses.append(worker.step())
                if self._averages:
                    self._averages[id(worker)].update(worker)
        for subject in self.subjects:
            subject.commit(self._random)
        for worker in self._everyone:
            if self._plan.embedding == "frozen":
                worker.load(None, self._first_table)
            if self._plan.averaging.fresh_optimizer:
                worker.reset_optimizer(0)
        return float(torch.stack(losses).mean())

    def read(self) -> tuple[list[Float32], list[Float32]]:
        """Weights of each block, and the table it is read out with."""
        live = [self._averages[id(w[0])].read() if self._averages else w[0].read() for w in self._blocks]
        thetas, tables = [theta for theta, _ in live], [table for _, table in live]
        if self._averages:
            if self._plan.embedding == "shared":
                tables = [np.mean(tables, axis=0, dtype=np.float32)] * len(tables)
            return thetas, tables
        if len(self._blocks[0]) > 1:
            thetas = [subject.state for subject in self._states]
        if self._plan.embedding == "shared" and len(self._everyone) > 1:
            tables = [self._tables[0].state] * len(tables)
        elif self._plan.embedding == "own" and len(self._blocks[0]) > 1:
            tables = [subject.state for subject in self._tables]
        return thetas, tables


def block_batches(plan: Plan, text: LabText, block: int, replica: int = 0) -> Iterator[NDArray[np.uint8]]:
    """The sequences of one worker, uint8 ``[batch, context + 1]``."""
    order = _own_seed(plan, replica) + (0 if plan.same_batches else block)
    return batches(text.corpus, order, plan.recipe.batch, plan.model.context)


def _own_seed(plan: Plan, replica: int) -> int:
    return 1000 * plan.seed + 100 * replica


def _learner(plan: Plan, text: LabText, block: int, replica: int, device: str) -> BlockLearner:
    kind = DenoiserLearner if plan.objective == "embedding-mse" else BlockLearner
    return kind(
        plan.model,
        plan.recipe,
        block,
        block_layout(plan.model).genesis(plan.seed, block),
        embedding_layout(plan.model).genesis(plan.seed, EMBEDDING),
        batches=block_batches(plan, text, block, replica),
        seed=_own_seed(plan, replica) + block,
        device=device,
    )


class _Average:
    """An exponential average of a worker's weights whose early terms weigh no more than they should."""

    def __init__(self, decay: float) -> None:
        self._decay, self._steps = decay, 0
        self._parts: list[Float32] = []

    def update(self, worker: BlockLearner) -> None:
        fresh = worker.read()
        self._steps += 1
        if not self._parts:
            self._parts = list(fresh)
            return
        share = np.float32(max(1.0 - self._decay, 1.0 / self._steps))
        for held, part in zip(self._parts, fresh, strict=True):
            held += share * (part - held)

    def read(self) -> tuple[Float32, Float32]:
        return self._parts[0], self._parts[1]
