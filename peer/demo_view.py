"""How the demo shows its volunteers: a live table on a terminal, plain lines elsewhere; and its summary."""

from __future__ import annotations

import os
import time
from typing import IO, TYPE_CHECKING

from blockswarm.peer.demo import DemoResult, Display
from blockswarm.peer.node import Node
from blockswarm.peer.panel import PanelState
from blockswarm.peer.wording import count, describe, format_bytes, format_ce
from blockswarm.swarm.manifest import EMBEDDING

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import Group

COLUMNS = (
    "who",
    "block",
    "round",
    "met",
    "accepted",
    "commits",
    "CE",
    "seq/s",
    "up",
    "down",
)
LABEL_WIDTH = 14


def cells(node_name: str, running: bool, state: PanelState) -> tuple[str, ...]:
    """One row of the table, a cell for each of `COLUMNS`."""
    block = "" if state.block is None else str(state.block)
    node_name = node_name.removeprefix("volunteer-")
    event = state.last_round
    if event is None or not running:
        return (node_name, block, state.phase if running else "ended", *[""] * (len(COLUMNS) - 3))
    return (
        node_name,
        block,
        str(event.get("round")),
        str(max(0, count(event.get("met")) - 1)),
        "alone" if event.get("lone") else str(count(event.get("accepted"))),
        f"{state.committed} of {state.rounds}",
        format_ce(event.get("heldout_ce")),
        f"{event.get('samples_per_s') or 0:.0f}",
        format_bytes(state.sent),
        format_bytes(state.received),
    )


class _Follower:
    """Folds each volunteer's events once, as they come."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self.states: dict[str, PanelState] = {}

    def take(self, node: Node) -> list[dict[str, object]]:
        """Fold what is new of ``node`` and return it."""
        new = node.events[self._seen.get(node.name, 0) :]
        self._seen[node.name] = len(node.events)
        state = self.states.get(node.name, PanelState())
        for event in new:
            state = state.after(event)
        self.states[node.name] = state
        return [dict(event) for event in new]


class LineDisplay:
    """Plain lines: what happens next, and one line for each block and round."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._follower = _Follower()
        self._told: set[tuple[object, object]] = set()
        self._left = ""

    def note(self, text: str) -> None:
        self._line(text)

    def progress(self, done: float, total: float) -> None:
        left = max(0.0, total - done)
        self._left = f" · {left:.0f} s of training left" if left else ""

    def update(self, volunteers: list[Node]) -> None:
        for node in volunteers:
            for event in self._follower.take(node):
                if event.get("event") in ("error", "warning"):
                    self._line(f"{node.name}: {describe(event)}")
                key = (event.get("round"), event.get("subject"))
                if event.get("event") == "round" and event.get("subject") != EMBEDDING and key not in self._told:
                    # The replicas of a block report alike; the first one to report speaks for all.
                    self._told.add(key)
                    self._line(f"{describe(event)}{self._left}")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)


class TableDisplay:
    """A table of the volunteers that rich redraws in place, with what happens next above it."""

    def __init__(self, console: RichConsole) -> None:
        from rich.live import Live

        self._console = console
        self._follower = _Follower()
        self._running: dict[str, bool] = {}
        self._progress = (0.0, 0.0)
        self._live = Live(get_renderable=self._shown, console=console, refresh_per_second=2)
        self._live.start()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def progress(self, done: float, total: float) -> None:
        self._progress = (min(done, total), total)

    def update(self, volunteers: list[Node]) -> None:
        for node in volunteers:
            self._follower.take(node)
            self._running[node.name] = node.running

    def close(self) -> None:
        self._live.stop()

    def _shown(self) -> Group:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # Narrow enough for 80 columns.
        table = Table(
            *COLUMNS,
            title="blockswarm demo",
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for name, running in list(self._running.items()):
            table.add_row(*cells(name, running, self._follower.states[name]))
        done, total = self._progress
        if done >= total:
            return Group(table)
        words = Text(f"training: {done:.0f} of {total:.0f} s, {total - done:.0f} s left")
        return Group(table, ProgressBar(total=total, completed=done, width=40), words)


def open_display(stream: IO[str]) -> Display:
    """A live table if ``stream`` is a terminal, plain lines otherwise."""
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from rich.console import Console as RichConsole

        return TableDisplay(RichConsole(file=stream))
    return LineDisplay(stream)


def summary(result: DemoResult) -> str:
    """The result for people."""
    figures = {
        "run": result.run_id,
        "volunteers": f"{result.peers}, {result.blocks} blocks, trained for {result.seconds:.0f} s",
        "rounds": f"{result.rounds} of {result.round_seconds:g} s; committed per block {_list(result.rounds_committed)}"
        f" ({result.commit_rate:.0%})",
        "participation": f"{result.participation:.0%} of the live replicas' updates were accepted",
        "agreement": f"after {result.digest_agreement:.0%} of the commits all replicas held the same bytes",
        "held-out CE": f"{format_ce(result.ce_initial)} → {format_ce(result.ce_final)} nats/byte through the swarm"
        f" (sweep readout {format_ce(result.ce_final_sweep)})",
        "words": f"{result.words_known:.0%} of the generated words occur in the corpus",
        "traffic": f"{format_bytes(result.bytes_sent)} sent, {format_bytes(result.bytes_received)} received in rounds",
        "holders": f"per block {_list(result.holders)}",
        "left behind": f"{result.leftover_processes} processes"
        + (f"; had to be killed: {', '.join(result.killed)}" if result.killed else ""),
    }
    lines = [_labelled(label, value) for label, value in figures.items()]
    for prompt, piece in zip(result.prompts, result.pieces, strict=True):
        lines += ["", _labelled("prompt", prompt), _labelled("generated", piece)]
    return "\n".join(lines)


def _labelled(label: str, text: str) -> str:
    """``text`` beside its label; further lines of it stand below its first."""
    return f"{label:<{LABEL_WIDTH}}" + text.replace("\n", "\n" + " " * LABEL_WIDTH)


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))
