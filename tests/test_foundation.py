"""Clock and files: time that can be injected, files that are whole or absent."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from blockswarm.clock import ManualClock, SystemClock
from blockswarm.files import write_atomically


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_the_system_clock_tells_unix_time_plus_its_offset():
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 0.1
    clock.offset = 100.0
    assert abs(clock.now() - time.time() - 100.0) < 0.1


async def test_a_moment_that_has_passed_is_not_waited_for():
    async with asyncio.timeout(1):
        await SystemClock().sleep_until(0.0)


async def test_sleepers_of_a_manual_clock_wake_in_order_at_their_own_moment():
    clock, woken = ManualClock(100.0), []

    async def sleeper(when: float) -> None:
        await clock.sleep_until(when)
        woken.append((when, clock.now()))

    tasks = [asyncio.create_task(sleeper(when)) for when in (103.0, 101.0, 120.0)]
    await asyncio.sleep(0)
    await clock.advance(10.0)
    assert woken == [(101.0, 101.0), (103.0, 103.0)]
    assert clock.now() == 110.0
    await clock.advance(10.0)
    await asyncio.gather(*tasks)


def test_a_file_is_written_whole_with_its_mode_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, b"first", mode=0o600)
    write_atomically(path, b"second", mode=0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file"]


def test_an_existing_file_is_kept_when_it_must_not_be_overwritten(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, b"mine")
    with pytest.raises(FileExistsError):
        write_atomically(path, b"theirs", overwrite=False)
    assert path.read_bytes() == b"mine" and names(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]
