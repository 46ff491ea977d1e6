"""Progress bars of work that runs in several processes: one bar for each task at work, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.progress import TaskID

    from blockswarm.lab.wants import Step


class TaskBars:
    """Bars on a terminal; elsewhere one plain line whenever a task has ended."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}

    def report(self, step: Step) -> None:
        """Show that a task has come to ``step.done`` of ``step.total``."""
        ended = step.done >= step.total
        if not self._live:
            if ended:
                print(f"{step.task}: {step.total} done", file=sys.stderr, flush=True)
            return
        if step.task not in self._tasks:
            self._tasks[step.task] = self._bars.add_task(step.task, total=step.total)
        self._bars.update(self._tasks[step.task], completed=step.done)
        if ended:
            self._bars.remove_task(self._tasks.pop(step.task))
            self._bars.console.print(f"{step.task}: done", highlight=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
