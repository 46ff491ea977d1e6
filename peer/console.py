"""Where a volunteer's events go: a live panel on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from blockswarm.errors import BlockswarmError
from blockswarm.naming import option
from blockswarm.peer.panel import PanelState, render
from blockswarm.peer.wording import Event, Folder, describe

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

PANEL_REFRESHES_PER_SECOND = 2

OWN_HANDLERS = ("hivemind",)
"""Loggers of libraries that print by themselves and do not pass their records on to the root logger."""


class JsonLogError(BlockswarmError):
    """The file for the event log cannot be written."""


class Sink(Protocol):
    """One place events are shown or written. May raise `OSError`; it is then dropped, the volunteer goes on."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line; bytes as hex, numbers that JSON does not know as null."""

    def __init__(self, stream: IO[str], *, owned: bool) -> None:
        self._stream = stream
        self._owned = owned

    def show(self, event: Event) -> None:
        self._stream.write(json.dumps(plain(event), ensure_ascii=False, allow_nan=False) + "\n")
        self._stream.flush()

    def close(self) -> None:
        if self._owned:
            self._stream.close()


class PlainLines:
    """A line with the local time for each event a person has use for."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        if (line := describe(event)) is not None:
            self._stream.write(f"{time.strftime('%H:%M:%S', time.localtime(event.get('time')))} {line}\n")
            self._stream.flush()

    def close(self) -> None:
        pass


class LivePanel:
    """A panel that rich redraws in place, twice a second.

    What has to be copied or to outlive it stands outside: addresses above it, whole, and the last line below.
    """

    def __init__(self, console: RichConsole, now: Callable[[], float] = time.time) -> None:
        from rich.live import Live

        self._state = PanelState()
        self._console = console
        self._live = Live(
            get_renderable=lambda: render(self._state, now()),
            console=console,
            refresh_per_second=PANEL_REFRESHES_PER_SECOND,
            # The program may print nothing else while it runs; redirecting would route rich through rich.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, event: Event) -> None:
        self._state = self._state.after(event)
        if event.get("event") == "ready" and event.get("addrs"):
            self._print("others reach this peer at")
            for address in event["addrs"]:
                self._print(address)
        elif event.get("event") == "left":
            self._live.stop()
            self._print(str(describe(event)))

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str) -> None:
        """A line of its own, never cut: the terminal wraps what is longer, and copying it gives it whole."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


class Console:
    """Takes events from any thread, folds repeated messages, and hands the rest to its sinks.

    A sink that fails (closed pipe, full disk) is dropped with a word to the others: progress never stops training.
    """

    def __init__(self, sinks: list[Sink], *, now: Callable[[], float] = time.time) -> None:
        self._sinks = sinks
        self._now = now
        self._folder = Folder()
        self._lock = threading.RLock()

    def emit(self, event: Event) -> None:
        """Show ``event``; ``time`` (Unix seconds) is filled in where missing."""
        now = self._now()
        with self._lock:
            for shown in self._folder.feed({"time": now, **event}, now):
                self._show(shown)

    def close(self) -> None:
        """Show what is still folded and close the sinks. Doing it twice is harmless."""
        with self._lock:
            for shown in self._folder.flush():
                self._show(shown)
            sinks, self._sinks = self._sinks, []
            for sink in sinks:
                self._attempt(sink.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, event: Event) -> None:
        for sink in list(self._sinks):
            problem = self._attempt(functools.partial(sink.show, event))
            if problem is not None and sink in self._sinks:
                self._sinks.remove(sink)
                self._attempt(sink.close)
                message = f"progress is no longer written to {_name(sink)}: {problem}"
                self._show({"time": event["time"], "event": "warning", "message": message})

    @staticmethod
    def _attempt(action: Callable[[], None]) -> str | None:
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed under us
            return (error.strerror if isinstance(error, OSError) else None) or str(error)
        return None


def _name(sink: Sink) -> str:
    return "the JSON log" if isinstance(sink, JsonLines) else "the terminal"


class EventLogHandler(logging.Handler):
    """Routes warnings and errors of libraries through the console, so that they fold and keep the panel whole."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        kind = "error" if record.levelno >= logging.ERROR else "warning"
        # Our own messages speak for themselves; of a foreign one a reader must know who says it.
        source = "" if record.name.startswith("blockswarm.") else f"{record.name}: "
        self._console.emit({"event": kind, "message": source + record.getMessage(), "source": "log"})


@contextmanager
def log_to(console: Console) -> Iterator[None]:
    """While this lasts, what any library logs or warns of goes through ``console`` and nowhere else."""
    handler = EventLogHandler(console)
    loggers = [logging.getLogger(name) for name in (None, *OWN_HANDLERS)]
    before = [logger.handlers[:] for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers


def open_console(*, json_log: str | None = None, quiet: bool = False, stream: IO[str] | None = None) -> Console:
    """The console the options ask for.

    Parameters
    ----------
    json_log : str, optional
        File that gets one JSON object per event, appended; ``-`` writes them to standard output instead of progress.
    quiet : bool
        No progress for people.
    stream : text file, optional
        Where progress goes, standard output by default: a live panel if it is a terminal, plain lines otherwise.

    Raises
    ------
    JsonLogError
        When the file cannot be opened for writing.
    """
    out = stream or sys.stdout
    sinks: list[Sink] = []
    if json_log == "-":
        sinks.append(JsonLines(out, owned=False))
    elif json_log is not None:
        try:
            file = Path(json_log).open("a", encoding="utf-8")  # noqa: SIM115  (the sink closes it)
        except OSError as error:
            raise JsonLogError(f"{option('json_log')} {json_log}: cannot write to it: {error.strerror}") from error
        sinks.append(JsonLines(file, owned=True))
    if not quiet and json_log != "-":
        sinks.append(_progress(out))
    return Console(sinks)


def _progress(out: IO[str]) -> Sink:
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from rich.console import Console as RichConsole

        return LivePanel(RichConsole(file=out))
    return PlainLines(out)


def plain(value: Any) -> Any:
    """``value`` in what JSON knows: bytes as hex, tuples and sets as lists, keys as text, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    return plain(value.item()) if hasattr(value, "item") else str(value)
