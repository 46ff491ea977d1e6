"""The front door: what a user sees of help, mistakes and failures."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from blockswarm.cli import main as front
from blockswarm.errors import BlockswarmError, UsageError

FailWith = Callable[[BaseException], None]
HEAVY = ("torch", "hivemind", "libp2p", "numpy", "rich", "trio")


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> FailWith:
    """Makes ``init`` a command that raises the given error."""

    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(importlib.import_module("blockswarm.cli.init"), "command", command)

    return install


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in front.COMMANDS)])
def test_help_needs_no_heavy_import(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom blockswarm.cli.main import run\n"
        f"assert run({arguments!r}) == 0\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy: []\n")


@pytest.mark.parametrize("name", front.COMMANDS)
def test_every_command_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"  blockswarm {name}" in text


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and line in text for name, line in front.COMMANDS.items())


def test_an_expected_failure_is_one_line_and_exit_1(fail_with: FailWith, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(BlockswarmError("peers.txt:3: not a multiaddr"))
    assert front.run(["init"]) == 1
    assert capsys.readouterr().err == "error: peers.txt:3: not a multiaddr\n"


def test_a_value_that_cannot_work_is_one_line_and_exit_2(
    fail_with: FailWith, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(UsageError("--threads 0: give a number from 1 to 1024"))
    assert front.run(["init"]) == 2
    assert capsys.readouterr().err == "error: --threads 0: give a number from 1 to 1024\n"


@pytest.mark.parametrize("arguments", [["--debug", "init"], ["init", "--debug"]])
def test_debug_shows_the_traceback(
    arguments: list[str], fail_with: FailWith, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(BlockswarmError("peers.txt:3: not a multiaddr"))
    assert front.run(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith("error: peers.txt:3: not a multiaddr\n")


def test_a_full_disk_is_one_line(fail_with: FailWith, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(OSError(28, "No space left on device", "swarm.toml"))
    assert front.run(["init"]) == 1
    assert capsys.readouterr().err == "error: No space left on device: swarm.toml\n"


def test_a_bug_is_one_line_that_says_how_to_see_more(fail_with: FailWith, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(ZeroDivisionError("division by zero"))
    assert front.run(["init"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ZeroDivisionError: division by zero")
    assert "--debug" in error
    assert error.count("\n") == 1


def test_ctrl_c_is_one_line_and_exit_130(fail_with: FailWith, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(KeyboardInterrupt())
    assert front.run(["init"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_the_command_is_still_being_imported(tmp_path: Path) -> None:
    # A click that takes its time stands for a cold disk: everything of ours imports it first.
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "blockswarm", "status"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "words", "command"),
    [
        (["nonsense"], "no such command 'nonsense'", "blockswarm"),
        (["join", "--nonsense"], "no such option", "blockswarm join"),
        (
            ["join", "--block", "first"],
            "'--block': 'first' is neither 'auto' nor 'counts' nor a number",
            "blockswarm join",
        ),
        (["identity"], "missing argument 'FILE'", "blockswarm identity"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error
    assert error.endswith(f" (see `{command} --help`)\n") and error.count("\n") == 1


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run([]) == 0
    assert "Commands" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_quiet() -> None:
    code = (
        "import os, sys, click\nfrom blockswarm.cli import main, init\n"
        "init.command = click.Command('init', callback=lambda: [click.echo('x' * 70000) for _ in range(99)])\n"
        "sys.exit(main.run(['init']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


PROGRAM = """
import asyncio, os, subprocess, sys, time
from blockswarm.cli.running import run_until_stopped
async def program(stop):
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    {body}
    return 7
sys.exit(run_until_stopped(program, grace={grace}))
"""


def start(body: str, grace: float = 5.0) -> tuple[subprocess.Popen[str], int]:
    """A running program under `run_until_stopped`, and the process id of its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, grace=grace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def gone(pid: int) -> bool:
    import psutil

    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_for_a_graceful_end(number: signal.Signals) -> None:
    process, _ = start("await stop.wait(); child.kill(); child.wait()")
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (7, "")


def test_a_second_ctrl_c_ends_at_once_and_leaves_no_child() -> None:
    process, child = start("await stop.wait(); print('leaving', flush=True); await asyncio.sleep(60)", grace=50)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "leaving\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert gone(child)


def test_a_program_that_does_not_leave_is_ended_with_its_children() -> None:
    # Blocking the loop is the worst case: nothing that waits on the loop could help.
    process, child = start("time.sleep(60)", grace=0.3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert "did not stop within 0.3 s" in errors
    assert gone(child)
