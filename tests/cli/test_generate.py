"""What ``blockswarm generate`` does around the model: refusals before anybody is asked, and how output ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockswarm.cli import generate
from blockswarm.cli import main as front
from blockswarm.cli.generate import _write
from blockswarm.swarm.deadline import Deadline
from blockswarm.swarm.errors import DeadlineError
from blockswarm.swarm.report import CallReport, ClientStats


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--top-p", "3"], "--top-p"), (["--temperature", "-1"], "--temperature"), (["--timeout", "0"], "--timeout")],
    ids=["top-p", "temperature", "timeout"],
)
def test_a_value_out_of_range_is_wrong_usage_though_nobody_could_be_reached(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert front.run(["generate", "The ", *arguments]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


class Slow:
    """Standard input on which a prompt is typed, with the clock beside it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.buffer = self

    def read(self) -> bytes:
        self.now += 1000.0
        return b"The "


class Answering:
    """Stands in for a model; opening it takes 3 seconds."""

    run_id, stats = "demo-1", ClientStats(last=CallReport("generate", "parallel"))

    def generate(self, prompt: bytes, *, timeout: float, **_: Any) -> str:
        return f"{prompt.decode()}in {timeout:g} s"


@pytest.mark.parametrize(("where", "left"), [([], 2.0), (["--checkpoint", "model"], 5.0)], ids=["swarm", "folder"])
def test_time_begins_when_the_prompt_is_there_and_connecting_counts(
    where: list[str], left: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = Slow()

    @contextlib.contextmanager
    def opened(**_: Any) -> Iterator[Answering]:
        stdin.now += 3.0
        yield Answering()

    monkeypatch.setattr("sys.stdin", stdin)
    monkeypatch.setattr(generate, "Deadline", lambda seconds: Deadline(seconds, lambda: stdin.now))
    monkeypatch.setattr(generate, "asked_model", opened)
    assert front.run(["generate", "-", "--timeout", "5", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == f"The in {left:g} s"


def broken() -> Iterator[str]:
    yield "some te"
    raise DeadlineError("the time is up")


def test_an_error_never_shares_a_line_with_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeadlineError):
        _write(broken())
    assert capsys.readouterr().out == "some te\n"


def test_an_error_before_any_text_leaves_no_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeadlineError):
        _write(iter_of_nothing())
    assert capsys.readouterr().out == ""


def iter_of_nothing() -> Iterator[str]:
    raise DeadlineError("the time is up")
    yield ""  # makes it an iterator


def test_whole_text_ends_with_a_newline(capsys: pytest.CaptureFixture[str]) -> None:
    _write(iter(["a", "b"]))
    assert capsys.readouterr().out == "ab\n"


def test_stats_come_after_the_text_and_not_into_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Streaming:
        stats = ClientStats(last=CallReport("generate", "parallel", bytes=4, seconds=1.0, round_trips=2, drafted=3))

        def stream(self, prompt: bytes, *, draft: str, **_: Any) -> Iterator[str]:
            yield from (draft, "!")

    monkeypatch.setattr(generate, "asked_model", lambda **_: contextlib.nullcontext(Streaming()))
    assert front.run(["generate", "The ", "--stats", "--draft", "none"]) == 0
    said = capsys.readouterr()
    assert said.out == "none!\n"
    assert said.err == "4 bytes in 1.00 s; 2 round trips, 2.00 bytes each; 0 of 3 guessed bytes accepted\n"


def test_a_line_says_how_many_round_trips_a_text_took() -> None:
    report = CallReport("generate", "parallel", bytes=60, seconds=1.5, first_byte_seconds=0.2)
    assert generate.describe(report) == "60 bytes in 1.50 s, the first after 0.20 s"
    report.round_trips, report.drafted, report.accepted = 20, 50, 40
    assert generate.describe(report).endswith("; 20 round trips, 3.00 bytes each; 40 of 50 guessed bytes accepted")
