"""One host: a network namespace, and what can be started and opened in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.hosts import kernel
from benchmarks.hosts.errors import HostsError

Result = TypeVar("Result")

# Enters the namespace, then becomes the program. The kernel kills it when the thread that started it ends: a process of
# a world does not outlive it. 1 = PR_SET_PDEATHSIG, 9 = SIGKILL.
_ENTER = (
    "import ctypes, os, sys\n"
    "namespace, owner = map(int, sys.argv[1:3])\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.prctl(1, 9, 0, 0, 0)\n"
    "os.getppid() == owner or sys.exit(1)\n"
    f"if libc.setns(namespace, {kernel.CLONE_NEWNET}) != 0:\n"
    "    sys.exit('cannot enter the host: ' + os.strerror(ctypes.get_errno()))\n"
    "os.close(namespace)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)


class Host:
    """A host of a `World`; made by it.

    Attributes
    ----------
    number : int
        Its place in the world, from 0.
    address : str
        IPv4 address.
    address6 : str, optional
        IPv6 address; None where the kernel does not do IPv6.
    """

    def __init__(self, number: int, address: str, address6: str | None, namespace: int) -> None:
        self.number = number
        self.address = address
        self.address6 = address6
        self._namespace: int | None = namespace
        self.namespace_id = kernel.namespace_id(namespace)
        self._processes: list[subprocess.Popen[Any]] = []
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<Host {self.number} {self.address}>"

    @property
    def listen(self) -> str:
        """Multiaddr for ``--listen``: any free TCP port of this host."""
        return f"/ip4/{self.address}/tcp/0"

    def popen(self, args: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen(args, **options)`` on this host: only its network differs, files are the same everywhere.

        The process is killed when the world ends, and also when the thread that calls this ends. Options are those of
        `subprocess.Popen` except ``shell``, ``executable`` and ``preexec_fn``.

        Raises
        ------
        HostsError
            When the world has ended.
        FileNotFoundError
            When there is no such program, on the PATH or, named with a slash, seen from ``cwd``.
        """
        namespace = self._alive()
        if refused := {"shell", "executable", "preexec_fn"} & options.keys():
            raise TypeError(f"popen on a host has no {', '.join(sorted(refused))}")
        program = os.fspath(args[0])
        environment = os.environ if options.get("env") is None else options["env"]
        if os.sep in program:
            place = Path(options.get("cwd") or "") / program
            if not (place.is_file() and os.access(place, os.X_OK)):
                raise FileNotFoundError(f"no program {place}, or it may not be executed")
        elif shutil.which(program, path=environment.get("PATH")) is None:
            raise FileNotFoundError(f"no program {program!r} on the PATH")
        enter = [sys.executable, "-I", "-S", "-c", _ENTER, str(namespace), str(os.getpid())]
        passed = (*options.pop("pass_fds", ()), namespace)
        process: subprocess.Popen[Any] = subprocess.Popen([*enter, *args], pass_fds=passed, **options)
        self._processes = [known for known in self._processes if known.poll() is None]
        self._processes.append(process)
        return process

    def run(
        self, args: Sequence[str | os.PathLike[str]], *, timeout: float, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program on this host to its end, as ``subprocess.run(…, capture_output=True, text=True)`` would.

        Raises
        ------
        subprocess.TimeoutExpired
            After ``timeout`` seconds; it is killed then.
        subprocess.CalledProcessError
            When it fails, unless ``check`` is false.
        """
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        with self.popen(args, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(list(args), process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def call(self, function: Callable[[], Result]) -> Result:
        """``function()`` in a thread on this host. What it opens stays here, the thread does not."""
        namespace = self._alive()

        def body() -> Result:
            kernel.enter_network(namespace)
            return function()

        return kernel.in_thread(body)

    def socket(
        self, kind: socket.SocketKind = socket.SOCK_STREAM, family: socket.AddressFamily = socket.AF_INET
    ) -> socket.socket:
        """A socket of this host, for use in this very process. Closed when the world ends."""
        made = self.call(lambda: socket.socket(family, kind))
        self._sockets.add(made)
        return made

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on this host, whoever started it."""
        return kernel.processes_in({self.namespace_id})

    def kill_started(self, patience: float) -> None:
        """For `World`: end what `popen` started, also what has not yet arrived on the host."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(patience)

    def close(self) -> None:
        """For `World`, when the host is empty: let go of the namespace."""
        for opened in list(self._sockets):
            opened.close()
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None

    def _alive(self) -> int:
        if self._namespace is None:
            raise HostsError(f"host {self.number} is gone: its world has ended")
        return self._namespace
