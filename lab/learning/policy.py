"""How long a worker trains before it sends, how its update travels, and what becomes of a late one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Literal

from blockswarm.lab.errors import LabUsageError
from blockswarm.naming import option
from blockswarm.swarm.codec import Compression

IN_TIME = 0.98
"""Chance of arriving in time that an elastic worker wants."""

LINE_SPREAD = 0.4
"""How much an elastic worker expects its line to vary before it knows better: standard deviation of the logarithm of
its upload's seconds. Assumed."""

PRIOR_UPLOADS = 4
"""As many uploads as that expectation counts for."""

_NAME = re.compile(r"(?:fixed-([1-9]\d{0,5})|elastic)((?:\+(?:carry|fp16|int8|int4))*)")


@dataclass(frozen=True)
class Policy:
    """One way of working under a deadline."""

    name: str
    steps: int | None
    """Local steps of a round, after which the worker sends and waits; ``None``: it trains all the time."""
    compression: Compression
    late: Literal["carry", "drop"]
    """What becomes of an update that was not accepted."""


def policy_from(name: str) -> Policy:
    """``fixed-8``, ``elastic``, each with ``+carry``, ``+fp16``, ``+int8`` or ``+int4`` behind it.

    Raises
    ------
    LabUsageError
        For another name.
    """
    match = _NAME.fullmatch(name)
    extras = match[2].split("+")[1:] if match else []
    codecs = [extra for extra in extras if extra != "carry"]
    if match is None or len(codecs) > 1 or len(set(extras)) < len(extras):
        raise LabUsageError(
            f"{option('policy')} {name[:40]!r}: must be fixed-<steps> or elastic, with +carry and one of +fp16, +int8, "
            "+int4 where wanted, such as elastic+int4"
        )
    compression: Compression = "none"
    for known in ("fp16", "int8", "int4"):
        if known in codecs:
            compression = known
    return Policy(name, int(match[1]) if match[1] else None, compression, "carry" if "carry" in extras else "drop")


def snapshot_at(deadline: float, uploads: Sequence[float]) -> float:
    """When an elastic worker takes the snapshot that it sends: as late as leaves its upload time to arrive.

    The worker knows how long its uploads took so far and takes the next for log-normal around their geometric mean,
    with a spread that begins as `LINE_SPREAD` and follows what it sees. It trains on while the snapshot travels, as
    peers do, so an early snapshot delays work by a round and loses none.

    Parameters
    ----------
    deadline : float
        Seconds from the beginning of the round.
    uploads : sequence of float
        Seconds that its uploads took, latency included; at least one.

    Returns
    -------
    float
        Seconds from the beginning of the round; 0 where an upload barely fits, or not at all.
    """
    seen = [math.log(seconds) for seconds in uploads]
    mean = fmean(seen)
    squares = PRIOR_UPLOADS * LINE_SPREAD**2 + sum((value - mean) ** 2 for value in seen)
    upload = NormalDist(mean, math.sqrt(squares / (PRIOR_UPLOADS + len(seen) - 1)))
    return max(0.0, deadline - math.exp(upload.inv_cdf(IN_TIME)))
