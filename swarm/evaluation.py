"""Measuring a model, in a swarm or in a folder: which text, and its exact teacher-forced cross-entropy.

A byte is predicted from the window that `blockswarm.model.windows` gives its place in the whole text, wherever the
model is, however the text is cut into requests, and also when only parts of the text are measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from blockswarm.model.mixing import Readout
from blockswarm.model.scoring import STRETCH, TextScore, score_of
from blockswarm.naming import option
from blockswarm.swarm.errors import ArgumentError, ClientError, DeadlineError, NoHolderError, UntrustedAnswerError
from blockswarm.swarm.options import PinChoice, Progress, ReadingOptions
from blockswarm.swarm.score import Score, Spans

if TYPE_CHECKING:
    from blockswarm.swarm.report import ClientStats

BYTES_PER_SECOND = 50
"""A measurement may take so long that it manages this many bytes a second; and ``LEAST_SECONDS`` in any case."""
LEAST_SECONDS = 600.0


class Model(Protocol):
    """What is measured: ``SwarmClient`` and ``LocalModel`` both are one."""

    @property
    def stats(self) -> ClientStats:
        """Among others, how the latest call went."""

    def score(
        self,
        text: str | bytes,
        *,
        given: str | bytes = ...,
        spans: Spans | None = ...,
        **options: Unpack[ReadingOptions],
    ) -> Score:
        """How likely ``text`` is."""


@dataclass(frozen=True)
class Sample:
    """The bytes that are measured.

    Attributes
    ----------
    name : str
        Where the text is from.
    part : str
        ``heldout`` or ``all`` of it.
    text : bytes
        The whole part.
    spans : list of (int, int)
        Ranges of it to be predicted. The first byte of a text is context only.
    """

    name: str
    part: str
    text: bytes = field(repr=False)
    spans: list[tuple[int, int]]

    @property
    def predicted(self) -> int:
        """Bytes to be predicted."""
        return sum(end - begin for begin, end in self.spans)

    @property
    def whole(self) -> bool:
        """Whether that is all of the text."""
        return self.predicted == len(self.text) - 1

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole part, 32 bytes: two figures are comparable when it is equal."""
        return hashlib.sha256(self.text).digest()

    def __str__(self) -> str:
        what = f"the held-out part of {self.name}" if self.part == "heldout" else self.name
        if self.whole:
            return f"all {self.predicted:,} bytes of {what}"
        pieces = f"{len(self.spans)} stretches spread evenly over" if len(self.spans) > 1 else "the beginning of"
        return f"{self.predicted:,} of {len(self.text) - 1:,} bytes, {pieces} {what}"


@dataclass(frozen=True)
class Evaluation:
    """How well a text was predicted."""

    sample: Sample
    score: TextScore
    """Cross-entropy in nats and bits per byte, with its interval."""
    missing: tuple[int, ...] = ()
    """Blocks it was measured without, at least in part."""
    states: dict[str, Any] | None = None
    """States it was measured with (those at the end, if they changed), as ``Pin.as_json`` gives them."""
    repinned: int = 0
    """Times the swarm's states were lost in the middle and others had to be taken: then the figure is of a mixture."""


def take_sample(spec: str, *, context: int, max_bytes: int = 0, whole: bool = False) -> Sample:
    """The text to measure on.

    Parameters
    ----------
    spec : str
        Corpus, as :func:`blockswarm.model.corpus.open_corpus` takes it; the part that volunteers hold out is used.
    context : int
        Context length of the model, bytes; it decides how a corpus is split.
    max_bytes : int
        Most bytes to predict; 0 for all. Of a longer text, evenly spread stretches of ``scoring.STRETCH`` bytes.
    whole : bool
        Take ``spec`` as a file that nobody trained on, and use all of it.

    Raises
    ------
    ArgumentError
        When the file cannot be read, holds nothing to predict, or ``max_bytes`` is negative.
    CorpusError
        As `open_corpus` raises it.
    """
    if max_bytes < 0:
        raise ArgumentError(f"{option('max_bytes')} {max_bytes}: must be a whole number, 0 (for all) or more")
    if whole:
        try:
            text = Path(spec).read_bytes()
        except OSError as error:
            raise ArgumentError(f"{spec}: cannot be read: {error.strerror}; all of a text needs a file") from error
        if len(text) < 2:
            raise ArgumentError(f"{spec}: holds {len(text)} bytes: nothing to predict, give at least 2")
    else:
        from blockswarm.model.corpus import open_corpus

        text = open_corpus(spec, context=context).heldout.tobytes()
    return Sample(spec, "all" if whole else "heldout", text, spread(len(text), max_bytes))


def spread(length: int, max_bytes: int) -> list[tuple[int, int]]:
    """Ranges of a text of ``length`` bytes to be predicted, together at most ``max_bytes`` (0: all but the first byte).

    Stretches are as long as what counts as one draw for the interval, so that each is one.
    """
    if not max_bytes or max_bytes >= length - 1:
        return [(1, length)]
    count = max(1, max_bytes // STRETCH)
    long = min(STRETCH, max_bytes)
    step = (length - 1 - long) / max(1, count - 1)
    return [(1 + begin, 1 + begin + long) for begin in (round(number * step) for number in range(count))]


def evaluate(
    model: Model,
    sample: Sample,
    *,
    readout: Readout = "parallel",
    seed: int = 0,
    pin: PinChoice = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Teacher-forced cross-entropy of ``sample``, all of it with the same states.

    Parameters
    ----------
    model : SwarmClient or LocalModel
        What is measured.
    sample : Sample
        From `take_sample`.
    readout : {"parallel", "sweep"}
        How blocks become one model.
    seed : int
        Of the sweep's noise.
    pin : optional
        States to measure; see :meth:`blockswarm.swarm.client.SwarmClient.generate`.
    timeout : float, optional
        Seconds for all of it; by default what ``BYTES_PER_SECOND`` needs.
    progress : callable, optional
        Called as ``progress(bytes done, bytes in total)``.

    Raises
    ------
    NoHolderError
        When nobody serves a block that the readout cannot do without.
    DeadlineError
        When the time is up.
    """
    score = model.score(
        sample.text[1:],
        given=sample.text[:1],
        spans=[(begin - 1, end - 1) for begin, end in sample.spans],
        readout=readout,
        seed=seed,
        pin=pin,
        timeout=max(LEAST_SECONDS, sample.predicted / BYTES_PER_SECOND) if timeout is None else timeout,
        progress=progress,
    )
    last = model.stats.last
    return Evaluation(
        sample,
        score_of(score.log_probs),
        score.missing,
        states=None if last is None else last.pin,
        repinned=0 if last is None else last.repinned,
    )


def evaluate_each(
    model: Model, sample: Sample, readouts: Iterable[Readout], *, pin: PinChoice = None, **options: Any
) -> tuple[dict[Readout, Evaluation], dict[Readout, ClientError]]:
    """`evaluate` with several readouts: what was measured, and what could not be while another readout could.

    All readouts are measured with the same states, as long as the swarm keeps them.

    Raises
    ------
    NoHolderError, UntrustedAnswerError, DeadlineError
        When nothing was measured: why the first readout was not.
    """
    measured: dict[Readout, Evaluation] = {}
    failed: dict[Readout, ClientError] = {}
    for readout in readouts:
        first = next((one for one in measured.values() if not one.missing), None)
        choices = [pin] if pin is not None or first is None else [first.states, None]
        for choice in choices:
            try:
                measured[readout] = evaluate(model, sample, readout=readout, pin=choice, **options)
                break
            except DeadlineError as error:
                failed[readout] = error
                break  # other states would not be measured any faster
            except (NoHolderError, UntrustedAnswerError) as error:
                failed[readout] = error
        if readout in measured:
            failed.pop(readout, None)
    if not measured:
        raise next(iter(failed.values()))
    return measured, failed
