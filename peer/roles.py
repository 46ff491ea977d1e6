"""Member or contributor: what a volunteer measures of itself, and when that changes what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from blockswarm.peer.trainer import Learner, Trainer
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.contributing import Role, can_contribute, load_of, takes_late_work

POLL_SECONDS = 0.2


class Roles:
    """Judges after every round whether a volunteer's step and upload fit one (`swarm.policy.contributing`).

    Parameters
    ----------
    manifest : Manifest
        The run.
    trainer : Trainer
        Whose steps are timed.
    others : callable
        Whether a member of the block's rounds is on record.
    emit : callable
        Told of every change, as a ``role`` event.
    """

    def __init__(
        self,
        manifest: Manifest,
        trainer: Trainer[Learner],
        *,
        others: Callable[[], bool],
        emit: Callable[[dict[str, Any]], None],
    ) -> None:
        self._manifest = manifest
        self._trainer = trainer
        self._others = others
        self._emit = emit
        self._role = Role()
        self.upload_seconds = 0.0
        """Measured time to send one whole encoded update of the block; 0 while unknown."""

    @property
    def contributor(self) -> bool:
        """Whether this peer is one now."""
        return self._role.contributor

    async def first(self) -> bool:
        """Judge by the first step, or, where that was slow because it was the first, by the second; as `judge`."""
        trainer = self._trainer
        if self._load() > 1.0:
            steps, busy = trainer.steps, trainer.busy_seconds
            while trainer.steps == steps:
                if not trainer.training or trainer.failed.done():
                    return self.judge(at_once=True)
                await asyncio.sleep(POLL_SECONDS)
            trainer.step_seconds = (trainer.busy_seconds - busy) / (trainer.steps - steps)
        return self.judge(at_once=True)

    def judge(self, *, at_once: bool = False) -> bool:
        """Take in what was measured since; whether the role has changed."""
        if not takes_late_work(self._manifest.rounds.late, self._manifest.averaging.robust):
            return False
        before, load = self._role.contributor, self._load()
        self._role = self._role.judged(load, others=self._others(), at_once=at_once)
        if self._role.contributor == before:
            return False
        step, upload, seconds = self._trainer.step_seconds, self.upload_seconds, self._manifest.rounds.seconds
        self._emit(
            {
                "event": "role",
                "contributor": self.contributor,
                "load": round(load, 2),
                "step_seconds": round(step, 3),
                "upload_seconds": round(upload, 3),
                "round_seconds": seconds,
            }
        )
        if self.contributor and not can_contribute(step, upload, seconds):
            message = "a step and its upload take longer than late work is taken: this machine can only serve this run"
            self._emit({"event": "warning", "message": message})
        return True

    def _load(self) -> float:
        rounds = self._manifest.rounds
        return load_of(
            self._trainer.step_seconds,
            self.upload_seconds,
            round_seconds=rounds.seconds,
            scatter_seconds=rounds.scatter,
        )
