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
    from rich.table import Table

COLUMNS = ("volunteer", "block", "round", "met", "accepted", "committed", "held-out CE", "samples/s", "up", "down")


def cells(node_name: str, running: bool, state: PanelState) -> tuple[str, ...]:
    """One row of the table, a cell for each of `COLUMNS`."""
    block = "" if state.block is None else str(state.block)
    event = state.last_round
    if event is None or not running:
        return (node_name, block, state.phase if running else "ended", *[""] * (len(COLUMNS) - 3))
    return (
        node_name,
        block,
        str(event.get("round")),
        str(count(event.get("met"))),
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

    def note(self, text: str) -> None:
        self._line(text)

    def update(self, volunteers: list[Node]) -> None:
        for node in volunteers:
            for event in self._follower.take(node):
                if event.get("event") in ("error", "warning"):
                    self._line(f"{node.name}: {describe(event)}")
                key = (event.get("round"), event.get("subject"))
                if event.get("event") == "round" and event.get("subject") != EMBEDDING and key not in self._told:
                    # The replicas of a block report alike; the first one to report speaks for all.
                    self._told.add(key)
                    self._line(str(describe(event)))

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
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=2)
        self._live.start()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def update(self, volunteers: list[Node]) -> None:
        for node in volunteers:
            self._follower.take(node)
            self._running[node.name] = node.running

    def close(self) -> None:
        self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(*COLUMNS, title="blockswarm demo", title_justify="left")
        for name, running in list(self._running.items()):
            table.add_row(*cells(name, running, self._follower.states[name]))
        return table


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
    lines = [f"{label:<14}{value}" for label, value in figures.items()]
    return "\n".join([*lines, "", "Generated text:", "", result.text])


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))
