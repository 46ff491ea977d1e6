"""How the demo looks: lines where nobody watches, a table on a terminal, and the summary."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console as RichConsole

from blockswarm.peer.demo import DemoConfig, DemoResult
from blockswarm.peer.demo_view import COLUMNS, LineDisplay, TableDisplay, cells, open_display, summary
from blockswarm.peer.panel import PanelState
from blockswarm.peer.wording import Event
from blockswarm.swarm.manifest import EMBEDDING

ROUND: Event = {
    "event": "round",
    "round": 7,
    "subject": 1,
    "met": ["a", "b"],
    "accepted": ["a", "b"],
    "committed": True,
    "digest": "1a2b3c4d",
    "heldout_ce": 2.134,
    "samples_per_s": 81.4,
    "bytes_sent": 1000,
    "bytes_received": 2000,
}
RESULT = DemoResult(
    run_id="local-0a1b",
    peers=6,
    blocks=3,
    seconds=120.4,
    total_seconds=160.0,
    round_seconds=10.0,
    rounds=11,
    rounds_committed=[11, 11, 10],
    participation=0.985,
    commit_rate=0.97,
    digest_agreement=1.0,
    words_known=0.8,
    ce_initial=5.545,
    ce_final=1.9,
    ce_final_sweep=2.3,
    bytes_sent=12_000_000,
    bytes_received=12_000_000,
    text="The end.\nOf it.",
    prompts=["The "],
    pieces=["end.\nOf it."],
    holders=[2, 2, 2],
    killed=[],
    leftover_processes=0,
)


def volunteer(name: str, *events: Event, running: bool = True) -> Any:
    """Stands for a `Node`: a name, its events, and whether it runs."""
    return SimpleNamespace(name=name, events=list(events), running=running)


def test_lines_show_a_round_of_a_block_once_though_every_replica_reports_it() -> None:
    out = io.StringIO()
    display = LineDisplay(out)
    first, second = volunteer("volunteer-1", ROUND), volunteer("volunteer-2", ROUND)
    display.note("starting")
    display.update([first, second])
    display.update([first, second])
    first.events.append({**ROUND, "round": 8})
    first.events.append({**ROUND, "round": 8, "subject": EMBEDDING})
    display.update([first, second])
    lines = [line[9:] for line in out.getvalue().splitlines()]
    assert lines[0] == "starting"
    assert [line[:16] for line in lines[1:]] == ["round 7, block 1", "round 8, block 1"]


def test_lines_tell_how_much_of_the_training_is_left() -> None:
    out = io.StringIO()
    display = LineDisplay(out)
    display.progress(45.0, 120.0)
    display.update([volunteer("volunteer-1", ROUND)])
    display.progress(120.0, 120.0)
    display.update([volunteer("volunteer-2", {**ROUND, "round": 8})])
    during, after = out.getvalue().splitlines()
    assert during.endswith(" · 75 s of training left")
    assert "left" not in after


def test_lines_name_the_volunteer_that_has_trouble() -> None:
    out = io.StringIO()
    LineDisplay(out).update([volunteer("volunteer-2", {"event": "warning", "message": "disk full"})])
    assert out.getvalue().endswith(" volunteer-2: warning: disk full\n")


def test_a_row_for_each_state_of_a_volunteer() -> None:
    state = PanelState().after({"event": "ready", "block": 1})
    assert cells("volunteer-1", True, state)[:3] == ("1", "1", "ready")
    trained = state.after(ROUND)
    assert cells("volunteer-1", True, trained) == (
        "1", "1", "7", "1", "2", "1 of 1", "2.134", "81", "1.0 kB", "2.0 kB",
    )  # fmt: skip
    assert cells("volunteer-1", False, trained)[2] == "ended"
    assert all(len(cells("x", running, at)) == len(COLUMNS) for running in (True, False) for at in (state, trained))


def test_the_table_on_a_terminal() -> None:
    out = io.StringIO()
    display = TableDisplay(RichConsole(file=out, force_terminal=True, width=80, color_system=None))
    display.note("all train")
    display.progress(45.0, 120.0)
    display.update([volunteer("volunteer-1", ROUND), volunteer("volunteer-2", running=False)])
    display.close()
    assert "all train" in out.getvalue()
    assert "training: 45 of 120 s, 75 s left" in out.getvalue()
    assert "2.134" in out.getvalue() and "ended" in out.getvalue()
    assert "…" not in out.getvalue()


def test_without_a_terminal_there_is_no_table() -> None:
    assert isinstance(open_display(io.StringIO()), LineDisplay)


def test_the_summary_holds_every_figure_and_the_text() -> None:
    text = summary(RESULT)
    for part in (
        "local-0a1b",
        "11, 11, 10",
        "97%",
        "98%",
        "5.545 → 1.900",
        "2.300",
        "12.0 MB",
        "2, 2, 2",
        "0 processes",
    ):
        assert part in text
    assert text.endswith("\n\nprompt        The \ngenerated     end.\n              Of it.")


def test_rounds_are_short_enough_for_several_and_long_enough_to_train() -> None:
    assert DemoConfig(seconds=120).round_seconds == 10.0
    assert DemoConfig(seconds=30).round_seconds == 6.0
    assert DemoConfig(seconds=3600).round_seconds == 30.0
