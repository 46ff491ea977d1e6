"""The p2pd child process: started, watched, stopped, and never left behind.

libp2p itself (connections, encryption, streams, relays) runs in ``p2pd``, the Go daemon hivemind ships. This module
owns that process. Three things about it are not obvious:

* It must die with us even after ``kill -9``: the kernel is asked to kill it when its parent ends
  (``PR_SET_PDEATHSIG``). A small launcher sets that and then becomes p2pd, because running Python code between fork
  and exec of a process with torch threads can deadlock. The kernel watches the *thread* that started the child, so
  start it from the thread the event loop lives in.
* It must not see the terminal's Ctrl-C: we still need it to say goodbye. Hence a session of its own.
* Its sockets lie in a private folder, so that no other user of the machine can command it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockswarm.dht.errors import HostError
from blockswarm.dht.identity import Identity
from blockswarm.dht.private_folder import PrivateFolder

logger = logging.getLogger(__name__)

# 1 = PR_SET_PDEATHSIG. The parent may have died before prctl took effect: then nobody is left to be asked about.
_LAUNCHER = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_MAX_LINE = 4096
_GREETING = ("Control socket:", "Peer ID:", "Peer Addrs:", "/")
"""How the lines begin that p2pd prints when all is well."""
TERMINATE_SECONDS = 1.0
"""How long a daemon may take to end by itself before it is killed; it normally needs a few milliseconds."""


@functools.cache
def p2pd_path() -> Path:
    """The p2pd binary inside the installed hivemind package (which is not imported).

    Raises
    ------
    HostError
        If hivemind or its binary is missing.
    """
    spec = importlib.util.find_spec("hivemind")
    if spec is None or spec.origin is None:
        raise HostError("hivemind is not installed; run: pip install 'hivemind>=1.1.12'")
    path = Path(spec.origin).parent / "hivemind_cli" / "p2pd"
    if not os.access(path, os.X_OK):
        raise HostError(f"{path} is missing or not executable; reinstall hivemind from its wheel")
    return path


class Daemon:
    """One running p2pd. Made by `Daemon.start`, ended by `stop`.

    Attributes
    ----------
    folder : Path
        Private folder for the sockets of this daemon and of those who talk to it.
    control_path : Path
        Unix socket for control requests.
    died : asyncio.Future of str
        Resolved with the reason when the process ends without having been stopped.
    pid : int
        Process id of p2pd.
    """

    def __init__(self, folder: PrivateFolder, process: asyncio.subprocess.Process) -> None:
        self._private = folder
        self._process = process
        self._stopping = False
        self._lines: collections.deque[str] = collections.deque(maxlen=20)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.folder = folder.path
        self.control_path = folder.path / "control"
        self.pid = process.pid
        self._tasks = [asyncio.create_task(self._read_output()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str],
        announce: Sequence[str] = (),
        relay: str = "on",
        trusted_relays: Sequence[str] = (),
        port_mapping: bool = False,
        timeout: float = 15.0,
    ) -> Daemon:
        """Start p2pd with ``identity`` and wait until it answers.

        It is started without bootstrap peers: dead ones would make the start slow or fatal.

        Parameters
        ----------
        identity : Identity
            Its secret reaches the daemon through a file that exists only while it starts.
        listen : sequence of str
            Multiaddrs to listen on; none makes a node that only dials out.
        announce : sequence of str
            Multiaddrs to tell others instead of those it listens on.
        relay : {"on", "auto", "off"}
            ``on`` can dial relayed peers, ``auto`` also asks relays to be reached through them, ``off`` neither.
        trusted_relays : sequence of str
            Full multiaddrs of the relays to ask with ``auto``.
        port_mapping : bool
            Ask the home router for a port (UPnP, NAT-PMP).
        timeout : float
            Seconds.

        Raises
        ------
        HostError
            If the daemon does not start; the message ends in what it said.
        """
        binary = p2pd_path()
        folder = PrivateFolder.create()
        try:
            key_file = folder.path / "key"
            key_file.touch(mode=0o600)
            key_file.write_bytes(identity.to_bytes())
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _LAUNCHER,
                str(os.getpid()),
                str(binary),
                *_arguments(folder.path, listen, announce, relay, trusted_relays, port_mapping),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "GOLOG_LOG_LEVEL": os.environ.get("GOLOG_LOG_LEVEL", "error")},
            )
        except BaseException as error:
            folder.remove()
            if isinstance(error, OSError):
                raise HostError(f"p2pd cannot be started: {error}") from None
            raise
        daemon = cls(folder, process)
        try:
            async with asyncio.timeout(timeout):
                waits: list[asyncio.Future[Any]] = [daemon._ready, daemon.died]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if daemon.died.done():
                raise HostError(daemon.died.result())
        except BaseException as error:
            await daemon.stop()
            if isinstance(error, TimeoutError):
                raise HostError(f"p2pd did not start within {timeout:.0f} s{daemon._last_words()}") from None
            raise
        finally:
            key_file.unlink(missing_ok=True)
        return daemon

    async def stop(self, timeout: float = TERMINATE_SECONDS) -> None:
        """End the process, by force after ``timeout`` seconds, and remove the folder. May be called twice."""
        self._stopping = True
        try:
            if self._process.returncode is None:
                self._signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(timeout):
                        await self._process.wait()
                except TimeoutError:
                    logger.warning("p2pd %d did not end within %.1f s; killing it", self.pid, timeout)
        finally:
            # Also when this coroutine is cancelled: the child must not outlive it.
            if self._process.returncode is None:
                self._signal(signal.SIGKILL)
            for task in self._tasks:
                task.cancel()
            self._private.remove()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._process.wait()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _watch(self) -> None:
        code = await self._process.wait()
        # Its last lines may still be in the pipe.
        await asyncio.wait([self._tasks[0]], timeout=0.5)
        if not self._stopping and not self.died.done():
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.died.set_result(f"p2pd {how}{self._last_words()}")

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE:]
            for raw in lines:
                line = raw[:_MAX_LINE].decode(errors="replace").strip()
                if not line:
                    continue
                logger.debug("p2pd: %s", line)
                if not line.startswith(_GREETING):
                    self._lines.append(line)
                elif line.startswith("Peer ID:") and not self._ready.done():
                    self._ready.set_result(None)
        if rest:
            self._lines.append(rest.decode(errors="replace").strip())

    def _last_words(self) -> str:
        return f": {self._lines[-1][:300]}" if self._lines else ""


def _arguments(
    folder: Path,
    listen: Sequence[str],
    announce: Sequence[str],
    relay: str,
    trusted_relays: Sequence[str],
    port_mapping: bool,
) -> list[str]:
    lists = {"hostAddrs": listen, "announceAddrs": announce, "trustedRelays": trusted_relays if relay == "auto" else ()}
    flags = {
        "dhtServer": bool(listen),
        "dhtClient": not listen,
        "noListenAddrs": not listen,
        "b": False,
        "autonat": True,
        "autoRelay": relay == "auto",
        "relay": relay != "off",
        "connManager": True,
        "natPortMap": port_mapping,
        "tls": True,
    }
    return [
        f"-id={folder / 'key'}",
        f"-listen=/unix{folder / 'control'}",
        # If nobody opens a persistent connection, we died while it started.
        "-idleTimeout=60s",
        *(f"-{name}={','.join(addrs)}" for name, addrs in lists.items() if addrs),
        *(f"-{name}={int(value)}" for name, value in flags.items()),
    ]
