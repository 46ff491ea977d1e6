"""Where a volunteer's events go: terminal, plain lines, JSON; and that showing them never stops it."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from blockswarm.peer.console import (
    Console,
    JsonLines,
    JsonLogError,
    LivePanel,
    PlainLines,
    Sink,
    log_to,
    open_console,
    plain,
)
from blockswarm.peer.panel import NOTES, PanelState, render, rows
from blockswarm.peer.wording import Event
from blockswarm.swarm.manifest import EMBEDDING

READY: Event = {
    "event": "ready",
    "run_id": "demo-0a1b",
    "peer_id": "12D3KooWabcdef",
    "block": 1,
    "next_round_at": 110.0,
}
ROUND: Event = {
    "event": "round",
    "round": 7,
    "subject": 1,
    "met": ["a", "b"],
    "accepted": ["a", "b"],
    "rejected": {},
    "committed": True,
    "digest": "1a2b3c4d5e6f",
    "loss": 2.2,
    "heldout_ce": 2.134,
    "samples_per_s": 812.0,
    "bytes_sent": 1_000_000,
    "bytes_received": 2_000_000,
    "next_round_at": 120.0,
}


class Failing:
    """A sink whose pipe is closed."""

    def __init__(self) -> None:
        self.closed = False

    def show(self, event: Event) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def close(self) -> None:
        self.closed = True


class Recording:
    """A sink that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def show(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def console_of(*sinks: Sink) -> Console:
    return Console(list(sinks), now=lambda: 100.0)


def folded(*events: Event) -> PanelState:
    state = PanelState()
    for event in events:
        state = state.after(event)
    return state


def test_the_json_log_has_one_object_per_event_with_its_time(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with open_console(json_log=str(log), quiet=True) as console:
        console.emit(ROUND)
        console.emit({"event": "stopped", "time": 5.0})
    first, second = map(json.loads, log.read_text().splitlines())
    assert first["event"] == "round" and first["time"] > 0 and first["met"] == ["a", "b"]
    assert second == {"event": "stopped", "time": 5.0}


def test_the_json_log_is_appended_to(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    for _ in range(2):
        with open_console(json_log=str(log), quiet=True) as console:
            console.emit(ROUND)
    assert len(log.read_text().splitlines()) == 2


def test_a_json_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(JsonLogError, match=r"json_log .*missing/events\.jsonl: cannot write to it: No such file"):
        open_console(json_log=str(tmp_path / "missing" / "events.jsonl"))


def test_a_dash_writes_json_instead_of_progress() -> None:
    out = io.StringIO()
    with open_console(json_log="-", stream=out) as console:
        console.emit(ROUND)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["round"]


def test_away_from_a_terminal_progress_is_plain_lines() -> None:
    out = io.StringIO()
    with open_console(stream=out) as console:
        console.emit(ROUND)
        console.emit({"event": "internal detail"})
    (line,) = out.getvalue().splitlines()
    assert "round 7, block 1: 1 other met, 2 updates accepted" in line
    assert "\x1b" not in line


def test_quiet_shows_nothing() -> None:
    out = io.StringIO()
    with open_console(stream=out, quiet=True) as console:
        console.emit(ROUND)
    assert out.getvalue() == ""


def test_values_that_json_does_not_know() -> None:
    assert plain({1: b"\x01\xff", "x": float("nan"), "s": {"b", "a"}, "p": Path("a"), "n": (1, None)}) == {
        "1": "01ff",
        "x": None,
        "s": ["a", "b"],
        "p": "a",
        "n": [1, None],
    }


def test_a_closed_pipe_is_dropped_and_told_to_the_others() -> None:
    failing, recording = Failing(), Recording()
    console = console_of(failing, recording)
    console.emit(ROUND)
    console.emit(ROUND)
    warning, *rounds = recording.events
    assert warning["message"] == "progress is no longer written to the terminal: Broken pipe"
    assert [event["event"] for event in rounds] == ["round", "round"]
    assert failing.closed


def test_nobody_left_to_show_to_is_no_failure() -> None:
    console = console_of(Failing())
    console.emit(ROUND)
    console.emit(ROUND)
    console.close()


def test_repeats_are_folded_and_their_count_comes_out_at_the_end() -> None:
    recording = Recording()
    console = console_of(recording)
    for _ in range(1000):
        console.emit({"event": "warning", "message": "peer gone"})
    console.close()
    assert [event.get("repeated") for event in recording.events] == [None, 999]


def test_events_come_from_any_thread() -> None:
    out = io.StringIO()
    console = console_of(JsonLines(out, owned=False))

    def emit_many() -> None:
        for _ in range(50):
            console.emit(ROUND)

    threads = [threading.Thread(target=emit_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len([json.loads(line) for line in out.getvalue().splitlines()]) == 200


def test_what_libraries_log_becomes_events(capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    noisy = logging.getLogger("hivemind")
    quietened = noisy.level  # by a host in this process, perhaps
    noisy.setLevel(logging.WARNING)
    noisy.addHandler(own := logging.StreamHandler(sys.stderr))
    noisy.propagate = False
    with log_to(console_of(recording)):
        logging.getLogger("test_console").info("not shown")
        logging.getLogger("test_console").warning("disk %d%% full", 93)
        logging.getLogger("hivemind.p2p").error("gone")
        logging.getLogger("blockswarm.dht.host").warning("all addresses are private")
        warnings.warn("old", UserWarning, stacklevel=1)
    shown = [(event["event"], event["message"].splitlines()[0]) for event in recording.events]
    assert shown[:3] == [
        ("warning", "test_console: disk 93% full"),
        ("error", "hivemind.p2p: gone"),
        ("warning", "all addresses are private"),
    ]
    assert "UserWarning: old" in shown[3][1]
    assert own in noisy.handlers
    noisy.removeHandler(own)
    noisy.setLevel(quietened)
    assert capsys.readouterr().err == ""


def test_plain_lines_begin_with_the_time() -> None:
    out = io.StringIO()
    PlainLines(out).show({"event": "left", "time": 0.0, "state_dir": "peer-1"})
    assert out.getvalue()[2] == ":" and out.getvalue().endswith(" left; state kept in peer-1\n")


def test_the_panel_before_the_first_round() -> None:
    assert rows(folded(READY), now=104.0) == [("state", "ready, the round closes in 6 s")]
    assert rows(PanelState(), now=104.0) == [("state", "starting")]


def test_the_panel_shows_the_latest_round() -> None:
    shown = dict(rows(folded(READY, ROUND), now=112.0))
    assert shown == {
        "round": "7; round 8 closes in 8 s",
        "replicas": "1 other met, 2 updates accepted",
        "last round": "committed 1a2b3c4d; 1 of 1 committed",
        "held-out CE": "2.134 nats/byte (training 2.200)",
        "speed": "812 samples/s",
        "traffic": "1.0 MB up, 2.0 MB down",
    }


def test_traffic_counts_the_embedding_but_rounds_do_not() -> None:
    state = folded(READY, ROUND, {**ROUND, "subject": EMBEDDING}, {**ROUND, "round": 8, "committed": False})
    assert (state.sent, state.received) == (3_000_000, 6_000_000)
    assert (state.rounds, state.committed, state.block) == (2, 1, 1)


def test_a_missed_deadline_is_not_counted_below_zero() -> None:
    assert dict(rows(folded(READY, ROUND), now=500.0))["round"] == "7"


def test_after_the_end_of_training_the_panel_counts_down_to_no_round() -> None:
    shown = dict(rows(folded(READY, ROUND, {"event": "trained", "block": 1, "samples": 99}), now=112.0))
    assert shown["round"] == "7"


def test_the_panel_keeps_the_latest_messages_and_names_who_was_left_out() -> None:
    warnings = [{"event": "warning", "message": f"warning {number}"} for number in range(10)]
    state = folded(*warnings, {**ROUND, "rejected": {"12D3KooWbadbad": "not finite"}})
    assert len(state.notes) == NOTES
    assert state.notes[-1] == "round 7 left out …badbad: not finite"
    assert state.notes[-2] == "warning: warning 9"


def test_the_panel_on_a_terminal() -> None:
    out = io.StringIO()
    terminal = RichConsole(file=out, force_terminal=True, width=80, color_system=None)
    panel = LivePanel(terminal, now=lambda: 112.0)
    panel.show(READY)
    panel.show(ROUND)
    panel.close()
    assert "demo-0a1b · block 1" in out.getvalue()
    assert "2.134 nats/byte" in out.getvalue()


LONG = f"/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW{'x' * 44}/p2p-circuit/p2p/12D3KooW{'y' * 44}"


def test_addresses_stand_whole_above_the_panel_and_the_last_line_below_it() -> None:
    out = io.StringIO()
    panel = LivePanel(RichConsole(file=out, force_terminal=True, width=80, color_system=None), now=lambda: 112.0)
    panel.show({**READY, "addrs": [LONG, "/ip4/192.0.2.7/udp/4001/quic-v1/p2p/abc"]})
    panel.show(ROUND)
    panel.show({"event": "stopped", "reason": ""})
    panel.show({"event": "left", "state_dir": ".blockswarm/peer-1"})
    panel.close()
    shown = out.getvalue()
    assert f"{LONG}\n" in shown
    assert shown.rindex("left; state kept in .blockswarm/peer-1\n") > shown.rindex("─╯")


def test_the_panel_fits_a_narrow_terminal() -> None:
    out = io.StringIO()
    RichConsole(file=out, width=40, color_system=None).print(render(folded(READY, ROUND), 112.0))
    assert max(map(len, out.getvalue().splitlines())) <= 40
