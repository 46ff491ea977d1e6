"""When updates arrive: ``a = compute + latency + payload / bandwidth``, the arrival model of the paper.

Draws belong to (seed, worker, round) and to nothing else: all policies, and all regimes, meet the same luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from blockswarm.lab.learning.regime import Regime, Varying
from blockswarm.model.layout import philox

_NORMAL = NormalDist()

COMPUTE, LATENCY, LINE = 0, 1, 2
"""Columns of the draws."""


@dataclass(frozen=True)
class Trip:
    """What one worker meets in one round."""

    step_seconds: float
    upload_seconds: float
    """Latency and transfer together."""
    lost: bool
    """The update never arrives."""


class Arrivals:
    """The luck of all workers of a simulation.

    Parameters
    ----------
    regime : Regime
        Lines and machines.
    workers : int
        How many.
    step_seconds : float
        Of a step at the median worker.
    payload_bytes : int
        Of an update on the wire.
    seed : int
        Of all draws.
    """

    def __init__(self, regime: Regime, workers: int, *, step_seconds: float, payload_bytes: int, seed: int) -> None:
        self._regime, self._seed, self._workers = regime, seed, workers
        self._step_seconds, self._payload = step_seconds, payload_bytes
        # A few workers stand for many: each has a quantile of its own, so no seed has luckier lines than another.
        quantiles = np.array([_NORMAL.inv_cdf((place + 0.5) / workers) for place in range(workers)])
        random = np.random.Generator(philox("learning-workers", seed))
        self._own = np.stack([random.permutation(quantiles) for _ in range(3)], axis=1)

    def trips(self, round_number: int) -> list[Trip]:
        """What each worker meets in a round; round 0 stands for the downloads with which they joined."""
        random = np.random.Generator(philox("learning-round", self._seed, round_number))
        now = random.standard_normal((self._workers, 3))
        lost = random.random(self._workers) < self._regime.dropout
        return [self._trip(*met) for met in zip(self._own, now, lost.tolist(), strict=True)]

    def _trip(self, own: npt.NDArray[np.float64], now: npt.NDArray[np.float64], lost: bool) -> Trip:
        regime = self._regime
        latency = regime.latency_seconds.median * _factor(regime.latency_seconds, own, now, LATENCY)
        line = regime.up_mbit.median * 1e6 / 8 * _factor(regime.up_mbit, own, now, LINE)
        return Trip(
            step_seconds=self._step_seconds * _factor(regime.compute, own, now, COMPUTE),
            upload_seconds=latency + self._payload / line,
            lost=lost,
        )


def _factor(quantity: Varying, own: npt.NDArray[np.float64], now: npt.NDArray[np.float64], column: int) -> float:
    return math.exp(quantity.spread * float(own[column]) + quantity.jitter * float(now[column]))
