"""What the processes of a bench carry out: training a plan, measuring it, counting n-grams."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockswarm.lab.plan import Plan
from blockswarm.lab.store import Score, Store
from blockswarm.lab.text import LabText
from blockswarm.lab.training import Trained
from blockswarm.lab.wants import FITTED_BYTES, NGRAM, NGRAM_ORDER, WATCHED_BYTES, Source, Step, Want, counts_name
from blockswarm.lab.writing import write_file

if TYPE_CHECKING:
    from blockswarm.lab.measuring import Stack
    from blockswarm.model.ngram import NgramModel


class Worker:
    """What a process at work holds for all of its tasks."""

    source: Source
    text: LabText
    store: Store
    device: str
    report: Callable[[Step], None]
    counts: NgramModel | None


def begin(source: Source, folder: Path, threads: int, device: str, report: Callable[[Step], None]) -> None:
    """Make this process a worker; its tasks may follow."""
    import torch

    torch.set_num_threads(threads)
    Worker.source, Worker.text, Worker.store = source, source.open(), Store(folder)
    Worker.device, Worker.report, Worker.counts = device, report, None


def begin_apart(source: Source, folder: Path, threads: int, device: str, channel: Any) -> None:
    """As `begin`, in a process of its own that reports through ``channel``."""
    # Ctrl-C reaches the whole process group; only the parent answers it, by ending us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin(source, folder, threads, device, channel.put)


def do_training(key: str, plan: Plan) -> None:
    """Train as the plan says and keep what came of it under ``key``."""
    from blockswarm.lab.measuring import measure
    from blockswarm.lab.relay import train_relay
    from blockswarm.lab.training import train

    worker = Worker

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


def do_measuring(key: str, want: Want) -> None:
    """Measure the readouts of a want whose trainings are kept; keep the scores under ``key``."""
    from blockswarm.lab.measuring import measure

    worker = Worker
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
    if want.needs_counts:
        stack.mix_in(_counts(), worker.text.corpus.heldout[:FITTED_BYTES])
    rows = measure(
        stack,
        text,
        want.readouts,
        progress=lambda done, total: worker.report(Step(f"measure {key[:6]}", done, total)),
    )
    worker.store.save_scores(key, {name: Score.of(log_probs) for name, log_probs in rows.items()})


def do_counting(name: str, _: None) -> None:
    """Count the n-grams of the training bytes, unless that was done."""
    from blockswarm.model.ngram_file import build_ngram_file

    worker = Worker
    path = worker.store.folder / name
    if not path.exists():
        write_file(path, build_ngram_file(worker.text.corpus.train, order=NGRAM_ORDER))


def _counts() -> NgramModel:
    """The n-gram model, mapped and checked once in a process."""
    from blockswarm.model.ngram import NgramModel

    worker = Worker
    if worker.counts is None:
        worker.counts = NgramModel.open(worker.store.folder / counts_name(worker.text))
    return worker.counts


def _stack(models: list[tuple[Plan, Trained]]) -> Stack:
    from blockswarm.lab.measuring import Stack
    from blockswarm.lab.relay import RelayStack

    kind = RelayStack if models[0][0].relay else Stack
    return kind(models, Worker.device)
