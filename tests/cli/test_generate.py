"""What ``blockswarm generate`` does around the model: refusals before anybody is asked, and how output ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockswarm.cli import main as front
from blockswarm.cli.generate import _write
from blockswarm.swarm.errors import DeadlineError


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
