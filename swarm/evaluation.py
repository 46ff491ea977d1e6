"""Measuring the model through the swarm: which text, and its cross-entropy as a client sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockswarm.swarm.errors import ClientError

if TYPE_CHECKING:
    from blockswarm.swarm.client import SwarmClient
    from blockswarm.swarm.readouts import Readout

STRETCHES = 8
"""A text is taken in this many stretches, spread evenly."""

SHORTEST_STRETCH = 256
"""Fewer, but never shorter stretches: each begins without context, which a short one would mostly measure."""


@dataclass(frozen=True)
class Evaluation:
    """How well a text was predicted."""

    nats_per_byte: float
    """Teacher-forced cross-entropy."""
    bytes: int
    """Bytes predicted."""
    missing: tuple[int, ...]
    """Blocks it was measured without, at least in part."""
    states: dict[str, Any] | None
    """States pinned at the end, as ``Pin.as_json`` gives them."""


def read_stretches(spec: str, *, context: int, max_bytes: int, whole: bool = False) -> list[bytes]:
    """The text to measure on: evenly spread stretches, together at most ``max_bytes``.

    Parameters
    ----------
    spec : str
        Corpus, as :func:`blockswarm.model.corpus.open_corpus` takes it; the part that volunteers hold out is used.
    context : int
        Context length of the model, bytes; it decides how a corpus is split.
    max_bytes : int
        Upper bound of the total length, at least 2.
    whole : bool
        Take ``spec`` as a file that nobody trained on, and use all of it.

    Raises
    ------
    ClientError
        When the file cannot be read or a number is out of range.
    CorpusError
        As `open_corpus` raises it.
    """
    if max_bytes < 2:
        raise ClientError(f"at most {max_bytes} bytes: nothing to predict, give at least 2")
    if whole:
        try:
            text = Path(spec).read_bytes()
        except OSError as error:
            raise ClientError(f"{spec}: cannot be read: {error.strerror}; all of a text needs a file") from error
        if len(text) < 2:
            raise ClientError(f"{spec}: holds {len(text)} bytes: nothing to predict, give at least 2")
    else:
        from blockswarm.model.corpus import open_corpus

        text = open_corpus(spec, context=context).heldout.tobytes()
    if len(text) <= max_bytes:
        return [text]
    count = max(1, min(STRETCHES, max_bytes // SHORTEST_STRETCH))
    length = max_bytes // count
    step = (len(text) - length) / max(1, count - 1)
    return [text[begin : begin + length] for begin in (round(number * step) for number in range(count))]


def evaluate(
    swarm: SwarmClient, stretches: list[bytes], *, readout: Readout = "parallel", seed: int = 0, genesis: bool = False
) -> Evaluation:
    """Teacher-forced cross-entropy of ``stretches``; the first byte of each is context and is not predicted.

    Parameters
    ----------
    swarm : SwarmClient
        A connected client.
    stretches : list of bytes
        From `read_stretches`.
    readout : {"parallel", "sweep"}
        How blocks become one model.
    seed : int
        Of the sweep's noise.
    genesis : bool
        Measure the states training began with; holders serve them only during the first rounds.
    """
    log_prob, count, missing = 0.0, 0, set[int]()
    for stretch in stretches:
        score = swarm.score(
            stretch[1:], given=stretch[:1], readout=readout, seed=seed, pin="genesis" if genesis else None
        )
        log_prob += score.log_prob
        count += score.bytes
        missing.update(score.missing)
    last = swarm.stats.last
    return Evaluation(-log_prob / count, count, tuple(sorted(missing)), None if last is None else last.pin)
