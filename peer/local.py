"""A whole swarm on this machine: a bootstrap node and volunteers as real processes, for the demo and integration tests.

It only drives processes and reads their logs; nothing here imports torch or hivemind.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from blockswarm.model.config import SIZES, ModelConfig
from blockswarm.peer.node import POLL_SECONDS, PROGRAM, Launch, LocalError, Node, alive
from blockswarm.swarm.manifest import Manifest, create_manifest

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
LOOPBACK_BANDWIDTH = 12.5e6
"""Upload that a new manifest expects of a volunteer, bytes/s; loopback is far faster, a busy machine need not be."""
STOP_SECONDS = 7.0
"""Time all processes together get to leave after SIGINT; each ends itself by force after five."""
MARK = "BLOCKSWARM_LOCAL"
"""Environment variable with the swarm's own value: whoever carries it was started by it, at whatever depth."""
TAIL_BYTES = 400
"""Most of a failed command's output that is quoted in an error."""


def model_of(size: str, blocks: int | None = None) -> ModelConfig:
    """A named size, with another number of blocks if one is given."""
    return SIZES[size] if blocks is None else dataclasses.replace(SIZES[size], blocks=blocks)


class LocalSwarm:
    """Bootstrap node and volunteers in one folder. A context manager: leaving it stops every process.

    Parameters
    ----------
    folder : Path, optional
        Working folder, kept afterwards; by default a temporary one that is removed.
    model : ModelConfig, optional
        Model of the manifest, ``tiny`` by default.
    round_seconds : float
        Length of a round, s.
    seed : int
        Seed of the initial parameters; volunteer ``i`` draws its batches from ``1000 * seed + i``.
    data : str
        Corpus of the manifest.
    recipe : str
        Recipe of the manifest.
    starts_in : float
        Seconds from now to the start of round 1. Volunteers that are ready earlier train towards round 1 meanwhile.
    threads : int
        Threads of every volunteer.
    manifest : Manifest, optional
        What the swarm agrees on, instead of one made from the parameters above.

    Attributes
    ----------
    nodes : list of Node
        Every process started, the ended ones too.
    manifest : Manifest
        What the swarm agrees on; written to ``swarm.toml`` in the folder.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        model: ModelConfig | None = None,
        round_seconds: float = 10.0,
        seed: int = 0,
        data: str = "docs",
        recipe: str = "default",
        starts_in: float = 0.0,
        threads: int = 1,
        manifest: Manifest | None = None,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="local-swarm-")) if folder is None else folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.threads = threads
        self.seed = seed
        self.nodes: list[Node] = []
        self._mark = uuid.uuid4().hex
        self.environment = {MARK: self._mark, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.manifest: Manifest = manifest or create_manifest(
            name="local",
            size=model or SIZES["tiny"],
            recipe=recipe,
            data=data,
            round_seconds=round_seconds,
            seed=seed,
            bandwidth=LOOPBACK_BANDWIDTH,
            now=time.time() + starts_in,
        )
        self.manifest_file = self.folder / "swarm.toml"
        self.manifest_file.write_text(self.manifest.to_toml())
        self.peers_file = self.folder / "bootstrap_peers.txt"

    def start_bootstrap(
        self, *extra: str, listen: str = LOOPBACK, wait: float = 30.0, launch: Launch = subprocess.Popen
    ) -> Node:
        """Start a bootstrap node and wait until newcomers find its address in the peers file.

        Parameters
        ----------
        *extra : str
            More flags of ``blockswarm bootstrap``.
        listen : str
            Multiaddr to listen on.
        wait : float
            Most seconds to wait; 0 returns at once.
        launch : callable
            See `Launch`.
        """
        name = self._name("bootstrap")
        options = ["--manifest", str(self.manifest_file), "--peers-file", str(self.peers_file)]
        options += ["--listen", listen, "--state-dir", str(self.folder / name)]
        node = self._start(name, ["bootstrap", *options, *extra], launch=launch)
        if wait:
            node.wait_event("ready", timeout=wait)
        return node

    def start_volunteer(
        self,
        block: int | None = None,
        *extra: str,
        data: str | None = None,
        name: str | None = None,
        listen: str = LOOPBACK,
        program: Sequence[str] = PROGRAM,
        launch: Launch = subprocess.Popen,
    ) -> Node:
        """Start a volunteer of ``block`` (``None``: it chooses) and return at once.

        Parameters
        ----------
        block : int, optional
            Block to own.
        *extra : str
            More flags of ``blockswarm join``.
        data : str, optional
            Corpus, if another than the manifest's.
        name : str, optional
            Name, and with it state folder and seed; giving that of an ended volunteer continues it.
        listen : str
            Multiaddr to listen on.
        program : sequence of str
            See `Node`.
        launch : callable
            See `Launch`.
        """
        name = name or self._name("volunteer")
        names = list(dict.fromkeys([*(node.name for node in self.volunteers()), name]))
        options = ["--block", "auto" if block is None else str(block), "--peers-file", str(self.peers_file)]
        options += ["--listen", listen, "--state-dir", str(self.folder / name), "--threads", str(self.threads)]
        options += ["--seed", str(1000 * self.seed + names.index(name) + 1), "--device", "cpu"]
        options += [] if data is None else ["--data", data]
        return self._start(name, ["join", *options, *extra], program, launch)

    def command(
        self, *arguments: str, timeout: float, check: bool = True, launch: Launch = subprocess.Popen
    ) -> subprocess.CompletedProcess[str]:
        """Run a ``blockswarm`` command in the swarm's folder to its end, as a user would.

        Raises
        ------
        LocalError
            When it fails (unless ``check`` is false) or takes longer than ``timeout`` seconds.
        """
        return self.module("blockswarm", *arguments, timeout=timeout, check=check, launch=launch)

    def module(
        self,
        name: str,
        *arguments: str,
        timeout: float,
        check: bool = True,
        given: str = "",
        launch: Launch = subprocess.Popen,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m name`` in the swarm's folder with ``given`` as standard input; errors as for `command`."""
        what = " ".join([name, *arguments[:1]])
        command = [sys.executable, "-m", name, *arguments]
        environment = {**os.environ, **self.environment}
        pipe = subprocess.PIPE
        with launch(command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(given.encode(), timeout)
            except subprocess.TimeoutExpired as error:
                raise LocalError(f"{what}: no answer within {timeout:g} s") from error
            finally:
                process.kill()  # it has ended already, unless we leave early
        done = subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())
        if check and done.returncode != 0:
            words = done.stderr.strip()[-TAIL_BYTES:]
            raise LocalError(f"{what} failed (exit code {done.returncode}): {words}")
        return done

    def volunteers(self) -> list[Node]:
        """The volunteers started so far."""
        return [node for node in self.nodes if node.name.startswith("volunteer")]

    def stop_all(self, timeout: float = STOP_SECONDS) -> list[str]:
        """Ask every process to leave (SIGINT), and after ``timeout`` seconds end the rest with their families.

        Returns
        -------
        list of str
            Names of those that had to be killed.
        """
        for node in self.nodes:
            node.poll()
            node.kill(signal.SIGCONT)
            node.kill(signal.SIGINT)
        deadline = time.monotonic() + timeout
        while any(node.running for node in self.nodes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        stubborn = [node for node in self.nodes if node.running]
        for node in stubborn:
            node.kill(signal.SIGKILL, family=True)
        for node in self.nodes:
            node.wait_ended(timeout=STOP_SECONDS)
        return [node.name for node in stubborn]

    def leftover_processes(self, patience: float = 1.0) -> list[psutil.Process]:
        """Processes of this swarm that still run though nothing should; they get ``patience`` seconds to be gone."""
        deadline = time.monotonic() + patience
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return left

    def _alive(self) -> list[psutil.Process]:
        found = {member.pid: member for node in self.nodes for member in node.family()}
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and alive(process):
                    found[process.pid] = process
            except psutil.Error:
                continue  # it ended, or belongs to somebody else
        return list(found.values())

    def close(self) -> None:
        """Stop everything, kill what is left all the same, and remove the folder if it is temporary."""
        self.stop_all()
        for process in self.leftover_processes():
            try:
                process.kill()
            except psutil.Error:
                continue  # it ended meanwhile
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _name(self, kind: str) -> str:
        return f"{kind}-{1 + sum(node.name.startswith(kind) for node in self.nodes)}"

    def _start(
        self,
        name: str,
        arguments: Sequence[str],
        program: Sequence[str] = PROGRAM,
        launch: Launch = subprocess.Popen,
    ) -> Node:
        node = Node(name, arguments, folder=self.folder, environment=self.environment, program=program, launch=launch)
        self.nodes.append(node)
        return node
