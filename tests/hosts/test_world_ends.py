"""When a world ends, however it ends, nothing of it is left: no process, no namespace, no device, no descriptor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.hosts import HostsError, World, kernel
from blockswarm.peer.node import alive

Build = Callable[..., World]

# A process that leaves its session, ignores every polite signal, and has a child.
STUBBORN = (
    "import signal, subprocess, sys, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; {} time.sleep(60)"
)
PARENT = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"


def descriptors() -> set[str]:
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def users(namespaces: set[kernel.NamespaceId]) -> list[str]:
    """Everything anywhere that keeps one of the namespaces: processes in it, and descriptors of it."""
    found = [f"process {process.pid}" for process in kernel.processes_in(namespaces)]
    inodes = {f"net:[{inode}]" for _, inode in namespaces}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in inodes:
                found.append(str(link))
        except OSError:
            continue  # closed meanwhile
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def start_family(world: World) -> list[psutil.Process]:
    """A stubborn process with a child on every host; returns all of them."""
    for host in world:
        host.popen([sys.executable, "-c", STUBBORN.format(PARENT)])
    wait_for(lambda: all(len(host.processes()) == 2 for host in world), "a family on every host")
    return [process for host in world for process in host.processes()]


def namespaces_of(world: World) -> set[kernel.NamespaceId]:
    return {host.namespace_id for host in world}


def test_nothing_is_left_when_it_is_left(build: Build) -> None:
    before = descriptors()
    with build(2) as world:
        family = start_family(world)
        opened = world[0].socket()
        namespaces, forwarder = namespaces_of(world), world.forwarder
        assert len(users(namespaces)) >= 4
    assert not [process for process in family if alive(process)]
    assert not alive(forwarder)
    assert opened.fileno() == -1
    assert users(namespaces) == []
    assert descriptors() <= before


def test_what_was_started_a_moment_ago_is_ended_too(build: Build) -> None:
    with build(2) as world:
        namespaces = namespaces_of(world)
        processes = [host.popen(["sleep", "60"]) for host in world]  # not even on their hosts yet
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
    assert users(namespaces) == []


def test_nothing_is_left_after_an_exception_inside(build: Build) -> None:
    with pytest.raises(ZeroDivisionError), build(2) as world:
        family, namespaces, forwarder = start_family(world), namespaces_of(world), world.forwarder
        1 / 0  # noqa: B018
    assert not [process for process in (*family, forwarder) if alive(process)]
    assert users(namespaces) == []


def test_what_has_ended_says_so(build: Build) -> None:
    with build(2) as world:
        pass
    world.close()  # once more does no harm
    with pytest.raises(HostsError, match="the world has ended"):
        world.cut(0, 1)
    with pytest.raises(HostsError, match="host 0 is gone"):
        world[0].popen(["true"])


def test_a_dead_forwarder_is_noticed_and_the_world_still_ends_clean(build: Build) -> None:
    with build(2) as world:
        family, namespaces = start_family(world), namespaces_of(world)
        world.forwarder.kill()
        with pytest.raises(HostsError, match="the forwarder has died"):
            wait_for(lambda: world.traffic() is None, "the end of the forwarder")
    assert not [process for process in family if alive(process)]
    assert users(namespaces) == []


OWNER = """
import subprocess, sys, time
from benchmarks.hosts import World
world = World.build(2)
for host in world:
    host.popen([sys.executable, "-c", {stubborn!r}])
while not all(len(host.processes()) == 2 for host in world):
    time.sleep(0.02)
print(world.forwarder.pid, *[process.pid for host in world for process in host.processes()], flush=True)
print(*[number for host in world for number in host.namespace_id], flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["time.sleep(60)", ""], ids=["killed", "forgetful"])
def test_nothing_is_left_when_its_owner_ends_without_a_word(build: Build, then: str, tmp_path: Path) -> None:
    script = OWNER.format(stubborn=STUBBORN.format(PARENT), then=then)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    with owner.stdout as output:
        processes = [psutil.Process(int(pid)) for pid in output.readline().split()]
        numbers = [int(word) for word in output.readline().split()]
    namespaces = set(zip(numbers[::2], numbers[1::2], strict=True))
    assert len(processes) == 5
    if then == "time.sleep(60)":
        owner.send_signal(signal.SIGKILL)
    owner.wait(timeout=10)
    # The children of the host's processes are nobody's: it is the forwarder that ends them.
    wait_for(lambda: not users(namespaces), "an end of everything on the hosts", seconds=20)
    psutil.wait_procs(processes, timeout=5)
    assert not [process for process in processes if alive(process)]
