"""However a peer is told to end, it ends: soon, in good order, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from blockswarm.peer.checkpoint import CheckpointFolder
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node, alive
from tests.integration.small import PATIENCE, peer_id, story, wait_until
from tests.pace import slowness

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

STOP_SECONDS = 5.0
NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"

INTERRUPTED = (0, 130, -signal.SIGINT)
"""Exit codes of a program that is interrupted while it loads: it has not begun, or Python itself says so."""


class Peers:
    """A swarm whose peers are started ahead, each with a folder of its own for temporary files.

    They all load at the same time; a test then takes one and ends it.
    """

    def __init__(self, swarm: LocalSwarm) -> None:
        self.swarm = swarm
        self._ready: dict[str, list[Node]] = {
            "volunteer": [self.start(lambda: swarm.start_volunteer(0)) for _ in range(6)],
            "bootstrap": [self.start(lambda: swarm.start_bootstrap(wait=0)) for _ in range(2)],
            "joining": [self.start_joining() for _ in range(2)],
        }

    def take(self, kind: str) -> Node:
        """A running peer nobody has taken yet: a volunteer has committed a round, a joining one still seeks others."""
        node = self._ready[kind].pop()
        if kind == "joining":
            node.wait_event("warning", lambda event: "initial peer" in event["message"], timeout=PATIENCE)
        elif kind == "bootstrap":
            node.wait_event("ready", timeout=PATIENCE)
        else:
            node.wait_event("round", lambda event: bool(event["committed"]), timeout=PATIENCE)
        return node

    def give(self, kind: str, node: Node) -> None:
        """Put a peer among those that can be taken."""
        self._ready[kind].append(node)

    def start(self, start: Callable[[], Node]) -> Node:
        """Start a peer with a new folder for temporary files."""
        folder = self.swarm.folder / f"t{len(self.swarm.nodes)}"
        folder.mkdir()
        self.swarm.environment["TMPDIR"] = str(folder)
        return start()

    def start_joining(self) -> Node:
        """A volunteer whose only known peer is not there."""
        peers_file = self.swarm.folder / "nobody.txt"
        peers_file.write_text(NOBODY)
        return self.start(lambda: self.swarm.start_volunteer(0, "--peers-file", str(peers_file)))

    def temporary(self, node: Node) -> list[str]:
        """What is in the folder for temporary files of ``node``, but for the empty folder torch makes for a cache."""
        found = (self.swarm.folder / f"t{self.swarm.nodes.index(node)}").iterdir()
        return sorted(path.name for path in found if not path.name.startswith("torchinductor"))

    def checkpoint_round(self, node: Node) -> int:
        """The round of the newest checkpoint of a volunteer."""
        found = CheckpointFolder(self.swarm.folder / node.name).load_newest(self.swarm.manifest)
        assert found.checkpoint is not None
        assert found.skipped == ()
        return found.checkpoint.round

    def committed_round(self, node: Node) -> int:
        """The newest round of its block that a volunteer said it committed."""
        node.poll()
        return max(
            int(event["state_round"]) for event in node.events if event["event"] == "round" and event["subject"] == 0
        )

    def listed(self) -> set[str]:
        """Peer ids of the holders that are not gone, as ``blockswarm status`` shows them."""
        done = self.swarm.command("status", "--json", timeout=PATIENCE)
        return {holder["peer_id"] for block in json.loads(done.stdout)["blocks"] for holder in block["holders"]}


@pytest.fixture(scope="module")
def peers(start_swarm: Callable[..., LocalSwarm]) -> Peers:
    return Peers(start_swarm())


def end(node: Node, number: signal.Signals) -> int:
    """Send a signal and return the exit code; it has to come within five seconds."""
    allowed = STOP_SECONDS * max(1.0, slowness())
    began = time.monotonic()
    node.kill(number)
    code = node.wait_ended(timeout=allowed + 30)
    assert time.monotonic() - began <= allowed, story([node])
    return code


def daemon_of(node: Node) -> psutil.Process:
    """Its p2pd."""
    (found,) = (child for child in node.family() if child.name() == "p2pd")
    return found


def error_lines(node: Node) -> list[str]:
    """Lines of an error that ended it, as printed for people."""
    text = node.output.read_text()
    assert "Traceback" not in text, text
    return [line for line in text.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_volunteer_leaves_in_good_order(peers: Peers, number: signal.Signals) -> None:
    node = peers.take("volunteer")
    committed = peers.committed_round(node)
    assert end(node, number) == 0, story([node])
    assert node.find("stopped") is not None
    assert error_lines(node) == []
    assert peers.checkpoint_round(node) >= committed
    assert node.family() == []
    assert peers.temporary(node) == []
    # Its record is good for another 45 seconds: only a goodbye takes it off the list at once.
    assert peer_id(node) not in peers.listed()


def test_a_bootstrap_node_leaves_in_good_order(peers: Peers) -> None:
    node = peers.take("bootstrap")
    assert end(node, signal.SIGINT) == 0, story([node])
    assert node.find("stopped") is not None
    assert error_lines(node) == []
    assert node.family() == []
    assert peers.temporary(node) == []


def test_a_volunteer_that_reaches_nobody_can_be_interrupted(peers: Peers) -> None:
    node = peers.take("joining")
    assert daemon_of(node)
    assert end(node, signal.SIGINT) == 0, story([node])
    assert error_lines(node) == []
    assert node.family() == []
    assert peers.temporary(node) == []


def test_a_second_ctrl_c_ends_at_once(peers: Peers) -> None:
    node = peers.take("volunteer")
    allowed = max(1.0, slowness())
    daemon_of(node).suspend()  # the first Ctrl-C has something to wait for
    node.kill(signal.SIGINT)
    node.wait_event("stopped", timeout=PATIENCE)
    began = time.monotonic()
    node.kill(signal.SIGINT)
    assert node.wait_ended(timeout=PATIENCE) == 128 + signal.SIGINT
    assert time.monotonic() - began <= allowed
    wait_until(lambda: node.family() == [], "end of a suspended p2pd")


@pytest.mark.parametrize("kind", ["bootstrap", "volunteer"])
def test_a_p2pd_that_hangs_keeps_nobody_from_leaving(peers: Peers, kind: str) -> None:
    node = peers.take(kind)
    daemon_of(node).suspend()
    assert end(node, signal.SIGINT) == 0, story([node])
    assert node.family() == []
    assert peers.temporary(node) == []


def test_kill_9_leaves_no_p2pd_and_the_next_start_goes_on_and_cleans_up(peers: Peers) -> None:
    node = peers.take("volunteer")
    assert daemon_of(node)
    node.kill(signal.SIGKILL)
    node.wait_ended(timeout=PATIENCE)
    wait_until(lambda: node.family() == [], "end of the p2pd of a killed peer")
    (sockets,) = peers.temporary(node)

    peers.swarm.environment["TMPDIR"] = str(peers.swarm.folder / f"t{peers.swarm.nodes.index(node)}")
    again = peers.swarm.start_volunteer(0, name=node.name)
    assert peer_id(again) == peer_id(node)
    assert sockets not in peers.temporary(node)
    assert len(peers.temporary(node)) == 1
    peers.give("volunteer", again)


def test_a_volunteer_whose_p2pd_dies_says_so_and_ends(peers: Peers) -> None:
    node = peers.take("volunteer")
    committed = peers.committed_round(node)
    daemon_of(node).kill()
    assert node.wait_ended(timeout=PATIENCE) == 1
    assert error_lines(node) == ["error: the p2p host ended: p2pd was killed by signal 9"]
    stopped = node.find("stopped")
    assert stopped is not None
    assert "p2pd was killed" in stopped["reason"]
    assert peers.checkpoint_round(node) >= committed
    assert node.family() == []


def test_a_joining_volunteer_whose_p2pd_dies_says_so_and_ends(peers: Peers) -> None:
    node = peers.take("joining")
    daemon_of(node).kill()
    assert node.wait_ended(timeout=PATIENCE) == 1
    assert error_lines(node) == ["error: the p2p host ended: p2pd was killed by signal 9"]
    assert node.family() == []


@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0, 3.0])
def test_a_volunteer_can_be_interrupted_while_it_loads(peers: Peers, seconds: float) -> None:
    node = peers.start(lambda: peers.swarm.start_volunteer(0))
    time.sleep(seconds)  # no event to wait for: whatever it does at this moment, it must not get stuck
    assert end(node, signal.SIGINT) in INTERRUPTED
    assert node.family() == []


TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "blockswarm", *sys.argv[1:]])
"""


def test_closing_the_terminal_ends_a_volunteer(peers: Peers) -> None:
    swarm = peers.swarm
    state, log = swarm.folder / "in-a-terminal", swarm.folder / "in-a-terminal.jsonl"
    options = ["--peers-file", str(swarm.peers_file), "--listen", "/ip4/127.0.0.1/tcp/0", "--threads", "1"]
    options += ["--state-dir", str(state), "--json-log", str(log), "--device", "cpu"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "join", *options],
        env={**os.environ, **swarm.environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = bytearray()

    def look() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while chunk := os.read(ours, 65536):
                shown.extend(chunk)

    threading.Thread(target=look, daemon=True).start()
    wait_until(lambda: log.exists() and '"training"' in log.read_text(), "training in a terminal")
    family = psutil.Process(process.pid).children(recursive=True)
    assert any(member.name() == "p2pd" for member in family)
    os.close(ours)
    assert process.wait(STOP_SECONDS * max(1.0, slowness())) == 0
    assert b"blockswarm" in shown
    assert log.read_text().count('"event": "left"') == 1
    assert not any(map(alive, family))
