"""Local swarms end with whoever started them, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from blockswarm.peer.local import MARK, LocalSwarm
from blockswarm.peer.node import LocalError

pytestmark = pytest.mark.integration


def test_a_bootstrap_node_starts_is_found_in_the_peers_file_and_leaves_nothing() -> None:
    with LocalSwarm() as swarm:
        node = swarm.start_bootstrap()
        ready = node.wait_event("ready", timeout=1)
        assert ready["run_id"] == swarm.manifest.run_id
        assert ready["peer_id"] in swarm.peers_file.read_text()
        assert any("p2pd" in " ".join(member.cmdline()) for member in node.family())
        assert swarm.stop_all() == []
        assert node.process.returncode == 0
        assert node.find("stopped") is not None
        assert swarm.leftover_processes() == []
        folder = swarm.folder
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_is_as_graceful_as_ctrl_c(number: signal.Signals) -> None:
    with LocalSwarm() as swarm:
        node = swarm.start_bootstrap()
        node.kill(number)
        assert node.wait_ended(timeout=10) == 0
        assert swarm.leftover_processes() == []


def test_kill_9_leaves_no_daemon() -> None:
    with LocalSwarm() as swarm:
        node = swarm.start_bootstrap()
        family = node.family()
        node.kill(signal.SIGKILL)
        node.wait_ended(timeout=10)
        assert family
        assert swarm.leftover_processes() == []


def test_a_stopped_process_is_ended_too(tmp_path: Path) -> None:
    with LocalSwarm(folder=tmp_path) as swarm:
        node = swarm.start_bootstrap()
        node.kill(signal.SIGSTOP)
        assert swarm.stop_all() == []
        assert not node.running
    assert (tmp_path / "swarm.toml").exists()  # a folder that was given is kept


def test_waiting_names_what_a_process_said_before_it_ended(tmp_path: Path) -> None:
    with LocalSwarm(folder=tmp_path) as swarm:
        swarm.manifest_file.write_text("nonsense")
        with pytest.raises(LocalError, match=r"bootstrap-1 ended \(exit code 2\) before 'ready': error: .*swarm\.toml"):
            swarm.start_bootstrap()


OWNER = """
import sys, time
from blockswarm.peer.local import MARK, LocalSwarm
swarm = LocalSwarm()
swarm.start_bootstrap()
print(swarm.environment[MARK], swarm.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_owner_ends_the_swarm(number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    mark, folder = owner.stdout.readline().split()
    owner.send_signal(number)
    owner.communicate(timeout=10)
    members = [process for process in psutil.process_iter() if environment(process).get(MARK) == mark]
    _, alive = psutil.wait_procs(members, timeout=10)
    assert alive == []
    for path in sorted(Path(folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path(folder).rmdir()


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}
