"""The live panel of a volunteer on a terminal: what it shows (a value folded from events) and how (rich)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blockswarm.peer.wording import PROBLEMS, Event, describe, format_bytes, format_ce, outcome, short_id, together
from blockswarm.swarm.manifest import EMBEDDING, subject_name

if TYPE_CHECKING:
    from rich.panel import Panel

NOTES = 4
"""Latest messages kept under the figures."""


@dataclass(frozen=True)
class PanelState:
    """Everything the panel shows. A new value is folded from each event; nothing here is derived from the clock."""

    run_id: str = ""
    peer_id: str = ""
    block: int | None = None
    phase: str = "starting"
    last_round: Event | None = None
    """Latest round event of the block."""
    rounds: int = 0
    """Rounds of the block seen."""
    committed: int = 0
    """Of them, committed."""
    next_deadline: float | None = None
    """When the running round closes, Unix seconds."""
    sent: int = 0
    """Bytes sent in rounds so far, the embedding's included."""
    received: int = 0
    """Bytes received likewise."""
    notes: tuple[str, ...] = ()
    """Latest other lines, oldest first."""

    def after(self, event: Event) -> PanelState:
        """The state after ``event``."""
        kind = event.get("event")
        if kind == "round":
            return self._after_round(event)
        state = self
        if kind == "ready":
            state = replace(
                self,
                run_id=event.get("run_id", ""),
                peer_id=event.get("peer_id", ""),
                block=event.get("block"),
                phase="ready",
                next_deadline=event.get("next_round_at"),
            )
        elif kind == "training":
            state = replace(self, phase="training")
        elif kind == "trained":
            state = replace(self, phase="serving", next_deadline=None)
        elif kind == "stopped":
            state = replace(self, phase="leaving")
        line = describe(event) if kind in {*PROBLEMS, "state", "trained"} or "message" in event else None
        return replace(state, notes=(*state.notes, line)[-NOTES:]) if line else state

    def _after_round(self, event: Event) -> PanelState:
        state = replace(
            self,
            sent=self.sent + (event.get("bytes_sent") or 0),
            received=self.received + (event.get("bytes_received") or 0),
        )
        if event.get("subject") == EMBEDDING:
            return state
        state = replace(
            state,
            last_round=event,
            next_deadline=event.get("next_round_at"),
            block=event.get("subject"),
            rounds=self.rounds + 1,
            committed=self.committed + bool(event.get("committed")),
        )
        if rejected := event.get("rejected"):
            named = ", ".join(f"{short_id(peer)}: {reason}" for peer, reason in rejected.items())
            state = replace(state, notes=(*state.notes, f"round {event.get('round')} left out {named}")[-NOTES:])
        return state


def rows(state: PanelState, now: float) -> list[tuple[str, str]]:
    """Label and value of every line of the panel."""
    shown: list[tuple[str, str]] = []
    left = None if state.next_deadline is None else state.next_deadline - now
    # A deadline that is over by some seconds was missed for a reason shown elsewhere; counting below zero says nothing.
    known = left is not None and left >= 0
    if (event := state.last_round) is None:
        return [("state", state.phase + (f", the round closes in {left:.0f} s" if known else ""))]
    number = event.get("round") or 0
    # A round is often over before it closes: without its number the time left to the next one would seem too long.
    shown.append(("round", f"{number}" + (f"; round {number + 1} closes in {left:.0f} s" if known else "")))
    shown.append(("replicas", together(event) + (" (alone this round)" if event.get("lone") else "")))
    shown.append(("last round", f"{outcome(event)}; {state.committed} of {state.rounds} committed"))
    shown.append(
        ("held-out CE", f"{format_ce(event.get('heldout_ce'))} nats/byte (training {format_ce(event.get('loss'))})")
    )
    shown.append(("speed", f"{event.get('samples_per_s') or 0:.0f} samples/s"))
    shown.append(("traffic", f"{format_bytes(state.sent)} up, {format_bytes(state.received)} down"))
    return shown


def render(state: PanelState, now: float) -> Panel:
    """The panel itself at ``now`` (Unix seconds)."""
    from rich.console import Group, RenderableType
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for label, value in rows(state, now):
        grid.add_row(label, Text(value))
    parts: list[RenderableType] = [grid, *(Text(note, style="yellow") for note in state.notes)]
    block = "" if state.block is None else f" · {subject_name(state.block)}"
    title = f"{state.run_id or 'blockswarm'}{block}" + (f" · {short_id(state.peer_id)}" if state.peer_id else "")
    return Panel(Group(*parts), title=title, title_align="left", subtitle="Ctrl-C leaves", subtitle_align="right")
