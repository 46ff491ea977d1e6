"""The p2pd child: ready or a reason, watched, and gone whatever happens to its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from blockswarm.dht.control import Control, ControlError, reason_of
from blockswarm.dht.daemon import Daemon
from blockswarm.dht.errors import HostError
from blockswarm.dht.identity import Identity
from tests.dht.world import LOOPBACK, NOBODY, eventually


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie nobody has collected yet has)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def exists(path: str) -> bool:
    return Path(path).exists()


async def test_it_starts_under_the_given_identity_and_leaves_nothing_behind():
    identity = Identity.ephemeral()
    daemon = await Daemon.start(identity, listen=[LOOPBACK])
    try:
        peer_id, addrs = await Control(daemon.control_path).identify()
        assert peer_id == identity.peer_id
        assert len(addrs) == 1 and addrs[0].startswith("/ip4/127.0.0.1/tcp/")
        assert not (daemon.folder / "key").exists(), "the secret must not stay on disk"
        assert daemon.folder.stat().st_mode & 0o777 == 0o700
        assert not daemon.died.done()
    finally:
        await daemon.stop()
    await daemon.stop()
    assert gone(daemon.pid) and not daemon.folder.exists()
    assert not daemon.died.done(), "stopped is not died"


async def test_it_does_not_share_the_terminal_with_us():
    """Ctrl-C goes to the whole foreground group; the daemon is still needed to say goodbye."""
    daemon = await Daemon.start(Identity.ephemeral(), listen=[LOOPBACK])
    try:
        assert os.getsid(daemon.pid) != os.getsid(0)
        assert os.getpgid(daemon.pid) != os.getpgid(0)
    finally:
        await daemon.stop()


async def test_a_killed_daemon_is_noticed_with_the_reason():
    daemon = await Daemon.start(Identity.ephemeral(), listen=[LOOPBACK])
    try:
        os.kill(daemon.pid, signal.SIGKILL)
        assert await asyncio.wait_for(daemon.died, 10) == "p2pd was killed by signal 9"
        with pytest.raises(ControlError, match="does not answer on its control socket"):
            await Control(daemon.control_path).identify()
    finally:
        await daemon.stop()


async def test_a_daemon_that_hangs_is_stopped_by_force():
    daemon = await Daemon.start(Identity.ephemeral(), listen=[LOOPBACK])
    os.kill(daemon.pid, signal.SIGSTOP)
    start = time.monotonic()
    await daemon.stop(timeout=0.3)
    assert time.monotonic() - start < 2.0
    await eventually(lambda: gone(daemon.pid))


async def test_a_daemon_that_cannot_start_says_why():
    with pytest.raises(HostError, match=r"^p2pd ended with exit code \d+: .*unknown protocol nonsense"):
        await Daemon.start(Identity.ephemeral(), listen=["/nonsense/1"])


async def test_a_start_that_takes_too_long_is_given_up(monkeypatch, tmp_path):
    sleepy = tmp_path / "p2pd"
    sleepy.write_text("#!/bin/sh\nexec sleep 60\n")
    sleepy.chmod(0o755)
    monkeypatch.setattr("blockswarm.dht.daemon.p2pd_path", lambda: sleepy)
    with pytest.raises(HostError, match="did not start within"):
        await Daemon.start(Identity.ephemeral(), listen=[LOOPBACK], timeout=0.5)


CHILD = """
import asyncio, sys
from blockswarm.dht.daemon import Daemon
from blockswarm.dht.identity import Identity

async def main():
    daemon = await Daemon.start(Identity.ephemeral(), listen=["/ip4/127.0.0.1/tcp/0"])
    print(daemon.pid, daemon.folder, flush=True)
    await asyncio.sleep(60)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_kill_9_of_a_peer_leaves_no_p2pd(loop):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, loop, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    pid, folder = (await asyncio.wait_for(parent.stdout.readline(), 30)).decode().split()
    assert not gone(int(pid)) and exists(folder)
    parent.kill()
    await parent.wait()
    await eventually(lambda: gone(int(pid)), within=5)
    # Who starts next cleans up after it.
    await (await Daemon.start(Identity.ephemeral(), listen=[LOOPBACK])).stop()
    assert not exists(folder)


async def test_a_parent_that_died_before_the_child_was_ready_leaves_none_either():
    from blockswarm.dht.daemon import _LAUNCHER

    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _LAUNCHER, "1", "/bin/sleep", "60", stdout=subprocess.PIPE
    )
    # We are not process 1, which the launcher takes for: its parent has gone and it was handed over to another.
    assert await asyncio.wait_for(launcher.wait(), 10) == 0


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("all dials failed\n * [/ip4/1.2.3.4/tcp/1] dial tcp4: connect: connection refused", "refused"),
        ("failed to dial: context deadline exceeded", "timed out"),
        ("dial tcp 10.0.0.1:1: i/o timeout", "timed out"),
        (f"peer id mismatch: expected X, but remote key matches {NOBODY}", f"wrong peer id ({NOBODY} answers there)"),
        ("failed to dial: dial to self attempted", "it is this peer itself"),
        ("routing: not found", "no known address"),
        ("failed to negotiate protocol: protocols not supported: [/x]", "it does not speak this protocol"),
        ("something\n  quite   new", "something quite new"),
        ("x" * 500, "x" * 200 + "…"),
    ],
)
def test_reasons_are_few_words(said, shown):
    assert reason_of(said) == shown
