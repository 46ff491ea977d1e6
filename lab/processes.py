"""Carrying out tasks of a bench, here or in several processes."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from blockswarm.lab.tasks import begin, begin_apart
from blockswarm.lab.wants import Source, Step

Task = tuple[Callable[..., None], str, Any]
"""A function of some module's top level, a key under which it keeps its outcome, and its subject."""


def run_tasks(
    tasks: list[Task],
    *,
    source: Source,
    folder: Path,
    jobs: int,
    threads: int,
    device: str,
    report: Callable[[Step], None],
) -> None:
    """Carry out all tasks, in the order given; the first failure or an interrupt ends the others at once.

    Parameters
    ----------
    tasks : list
        Each is called with its key and subject, where `blockswarm.lab.tasks.Worker` holds the rest.
    source : Source
        The text.
    folder : Path
        Where outcomes are kept.
    jobs : int
        Processes; with 1 everything happens here.
    threads, device
        Of each process.
    report : callable
        Gets progress.
    """
    if jobs == 1:
        begin(source, folder, threads, device, report)
        for function, key, subject in tasks:
            function(key, subject)
    elif tasks:
        _run_apart(tasks, jobs, (source, folder, threads, device), report)


def _run_apart(tasks: list[Task], jobs: int, settings: tuple[Any, ...], report: Callable[[Step], None]) -> None:
    context = multiprocessing.get_context("spawn")
    channel = context.Queue()
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, begin_apart, (*settings, channel))
    try:
        pending = {pool.submit(function, key, subject) for function, key, subject in tasks}
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for step in _drain(channel):
                report(step)
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
