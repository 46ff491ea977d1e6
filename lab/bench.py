"""Doing what experiments ask for: every training and every measurement once, several at a time, kept as they end."""

from __future__ import annotations

import hashlib
import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blockswarm.files import write_atomically
from blockswarm.lab.errors import LabError
from blockswarm.lab.plan import Plan
from blockswarm.lab.store import Score, Store
from blockswarm.lab.text import LabText, open_text
from blockswarm.lab.training import Trained
from blockswarm.naming import option

if TYPE_CHECKING:
    from blockswarm.lab.measuring import Stack
    from blockswarm.model.ngram import NgramModel

CACHE = ".cache"
"""Folder within an output folder for trainings and measurements."""

WATCHED_BYTES = 1 << 14
"""Validation bytes a training looks at while it runs."""


FITTED_BYTES = 1 << 15
"""Validation bytes, from the first, on which the weight of the counts is fitted."""

NGRAM_ORDER = 8
NGRAM = "ngram"
"""Readout of the counts alone; needs no plan."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where text comes from and how much of it is measured on."""

    data: str
    """As ``open_text`` takes it."""
    context: int
    """Bytes in a window."""
    eval_bytes: int = 0
    """Bytes of a part that are measured, from its beginning; 0 = all of it."""

    def open(self) -> LabText:
        """The text."""
        return open_text(self.data, context=self.context)

    def measured(self, text: LabText, part: str) -> NDArray[np.uint8]:
        """The bytes of ``part`` (``valid`` or ``test``) that are measured: its first ``eval_bytes``, or all."""
        whole = text.part(part)
        return whole[: self.eval_bytes] if self.eval_bytes else whole


@dataclass(frozen=True, kw_only=True)
class Want:
    """Readouts of one trained model, or of several averaged, over a part of the text."""

    plans: tuple[Plan, ...]
    readouts: tuple[str, ...]
    part: str

    def key(self, text: LabText, source: Source) -> str:
        """A name for the measurement, apart from which readouts."""
        names = [plan.key(text.corpus.digest) for plan in self.plans]
        if not names:
            names = [counts_name(text)]
        content = "\0".join([*names, self.part, str(source.eval_bytes)])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def counts_name(text: LabText) -> str:
    """The file of the n-gram model of a text's training bytes, within a store."""
    return f"counts-{NGRAM_ORDER}-{text.corpus.digest.hex()[:24]}.ngram"


@dataclass(frozen=True)
class Step:
    """A report of progress."""

    task: str
    done: int
    total: int


@dataclass(frozen=True)
class Spent:
    """What a training took, apart from its weights."""

    seconds: float
    bytes_sent: int
    watched: list[tuple[int, float]]


class Bench:
    """Trains and measures, ``jobs`` processes at a time.

    Parameters
    ----------
    source : Source
        The text.
    store : Store
        Where results are kept and looked up.
    jobs : int
        Processes.
    threads : int
        CPU threads of each. Part of the result: another number may give other last bits.
    device : str
        As ``BlockLearner`` takes it.
    report : callable, optional
        Gets a :class:`Step` now and then.
    warn : callable, optional
        Gets a line for every damaged file that was found.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        *,
        jobs: int = 1,
        threads: int = 1,
        device: str = "cpu",
        report: Callable[[Step], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.source, self.store = source, store
        self.text = source.open()
        self._jobs, self._threads, self._device = jobs, threads, device
        self._report, self._warn = report, warn
        self._spent: dict[str, Spent] = {}
        self._scores: dict[str, dict[str, Score]] = {}

    def provide(self, wants: Iterable[Want]) -> None:
        """Train and measure whatever of ``wants`` is not in the store yet.

        Raises
        ------
        LabError
            If a readout does not exist, or the store cannot be written.
        """
        wants = list(wants)
        plans = {plan.key(self.text.corpus.digest): plan for want in wants for plan in want.plans}
        trainings = {key: plan for key, plan in plans.items() if not self._look_up(key)}
        missing = self._missing(wants)
        self._tell_damage()
        self._run((_train, key, plan) for key, plan in trainings.items())
        if any(NGRAM in want.readouts or _with_counts(want) for want in missing.values()):
            # Before several processes want them: they are counted once.
            self._run([(_count, counts_name(self.text), None)])
        self._run((_measure, key, want) for key, want in missing.items())
        for key in trainings:
            self._look_up(key)
        for key in missing:
            self._scores[key] = self.store.load_scores(key)
        self._tell_damage()

    def _look_up(self, key: str) -> bool:
        """Whether a training is in the store and whole; what it took is remembered, its weights are not."""
        trained = self.store.load_training(key)
        if trained is not None:
            self._spent[key] = Spent(trained.seconds, trained.bytes_sent, trained.watched)
        return trained is not None

    def _tell_damage(self) -> None:
        while self.store.set_aside:
            self._warn(self.store.set_aside.pop(0))

    def score(self, want: Want) -> dict[str, Score]:
        """What `provide` measured, readout by readout."""
        return self._scores[want.key(self.text, self.source)]

    def spent(self, plan: Plan) -> Spent:
        """What a training that `provide` found or made has taken."""
        return self._spent[plan.key(self.text.corpus.digest)]

    def training(self, plan: Plan) -> Trained:
        """What was trained, read from the store.

        Raises
        ------
        LabError
            If it was not provided.
        """
        trained = self.store.load_training(plan.key(self.text.corpus.digest))
        if trained is None:
            raise LabError(
                f"a training is missing from {self.store.folder}; run it again with {option('resume', True)}"
            )
        return trained

    def _missing(self, wants: Sequence[Want]) -> dict[str, Want]:
        readouts: dict[str, tuple[Want, dict[str, None]]] = {}
        for want in wants:
            key = want.key(self.text, self.source)
            names = readouts.setdefault(key, (want, {}))[1]
            names.update(dict.fromkeys(want.readouts))
        missing = {}
        for key, (want, names) in readouts.items():
            kept = self._scores[key] = self.store.load_scores(key)
            left = tuple(name for name in names if name not in kept)
            if left:
                missing[key] = Want(plans=want.plans, readouts=left, part=want.part)
        return missing

    def _run(self, tasks: Iterable[tuple[Callable[..., None], str, Any]]) -> None:
        """All tasks, in the order given; the first failure or an interrupt ends the others at once."""
        tasks = list(tasks)
        if self._jobs == 1:
            _begin(self.source, self.store.folder, self._threads, self._device, self._report)
            for function, key, subject in tasks:
                function(key, subject)
        elif tasks:
            self._run_apart(tasks)

    def _run_apart(self, tasks: list[tuple[Callable[..., None], str, Any]]) -> None:
        context = multiprocessing.get_context("spawn")
        channel = context.Queue()
        settings = (self.source, self.store.folder, self._threads, self._device, channel)
        pool = ProcessPoolExecutor(min(self._jobs, len(tasks)), context, _begin_apart, settings)
        try:
            pending = {pool.submit(function, key, subject) for function, key, subject in tasks}
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for step in _drain(channel):
                    self._report(step)
                _raise_first(done)
            pool.shutdown()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        finally:
            channel.close()


def _raise_first(done: set[Future[None]]) -> None:
    for future in done:
        future.result()


def _drain(channel: Any) -> Iterator[Step]:
    while True:
        try:
            yield channel.get_nowait()
        except queue.Empty:
            return


class _Worker:
    """What a process at work holds for all of its tasks."""

    source: Source
    text: LabText
    store: Store
    device: str
    report: Callable[[Step], None]
    counts: NgramModel | None


def _begin(source: Source, folder: Path, threads: int, device: str, report: Callable[[Step], None]) -> None:
    import torch

    torch.set_num_threads(threads)
    _Worker.source, _Worker.text, _Worker.store = source, source.open(), Store(folder)
    _Worker.device, _Worker.report, _Worker.counts = device, report, None


def _begin_apart(source: Source, folder: Path, threads: int, device: str, channel: Any) -> None:
    # Ctrl-C reaches the whole process group; only the parent answers it, by ending us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _begin(source, folder, threads, device, channel.put)


def _train(key: str, plan: Plan) -> None:
    from blockswarm.lab.measuring import measure
    from blockswarm.lab.relay import train_relay
    from blockswarm.lab.training import train

    worker = _Worker

    def watch(trained: Trained) -> float:
        text = worker.text.corpus.heldout[:WATCHED_BYTES]
        rows = measure(_stack([(plan, trained)]), text, ["parallel"])
        return Score.of(rows["parallel"]).whole.nats_per_byte

    def progress(done: int, total: int) -> None:
        if done < total:
            worker.report(Step(f"train {key[:6]}", done, total))

    if plan.relay:
        trained = train_relay(plan, worker.text, device=worker.device, progress=progress)
    else:
        trained = train(plan, worker.text, device=worker.device, progress=progress, watch=watch)
    worker.store.save_training(key, trained)
    worker.report(Step(f"train {key[:6]}", plan.work, plan.work))  # not before it is kept


def _measure(key: str, want: Want) -> None:
    from blockswarm.lab.measuring import measure

    worker = _Worker
    text = worker.source.measured(worker.text, want.part)
    if not want.plans:
        worker.store.save_scores(key, {NGRAM: Score.of(_counts().byte_log_probs(text))})
        return
    models = []
    for plan in want.plans:
        trained = worker.store.load_training(plan.key(worker.text.corpus.digest))
        assert trained is not None, "trained just before"
        models.append((plan, trained))
    stack = _stack(models)
    if _with_counts(want):
        stack.mix_in(_counts(), worker.text.corpus.heldout[:FITTED_BYTES])
    rows = measure(
        stack,
        text,
        want.readouts,
        progress=lambda done, total: worker.report(Step(f"measure {key[:6]}", done, total)),
    )
    worker.store.save_scores(key, {name: Score.of(log_probs) for name, log_probs in rows.items()})


def _with_counts(want: Want) -> bool:
    return any(readout.endswith("+ngram") for readout in want.readouts)


def _count(name: str, _: None) -> None:
    """Count the n-grams of the training bytes, unless that was done."""
    from blockswarm.model.ngram_file import build_ngram_file

    worker = _Worker
    path = worker.store.folder / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, build_ngram_file(worker.text.corpus.train, order=NGRAM_ORDER))


def _counts() -> NgramModel:
    """The n-gram model, mapped and checked once in a process."""
    from blockswarm.model.ngram import NgramModel

    worker = _Worker
    if worker.counts is None:
        worker.counts = NgramModel.open(worker.store.folder / counts_name(worker.text))
    return worker.counts


def _stack(models: list[tuple[Plan, Trained]]) -> Stack:
    from blockswarm.lab.measuring import Stack
    from blockswarm.lab.relay import RelayStack

    kind = RelayStack if models[0][0].relay else Stack
    return kind(models, _Worker.device)
