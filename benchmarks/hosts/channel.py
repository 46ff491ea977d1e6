"""The owner's end of the forwarder: started, given orders, ended."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.hosts.errors import HostsError

PATIENCE = 30.0
"""Seconds the forwarder gets for any answer; it needs milliseconds, or some seconds to start on a busy machine."""

MAX_HOSTS = 64
_ROOT = Path(__file__).resolve().parents[2]


def line_of(words: dict[str, Any]) -> bytes:
    """An order or an answer as it goes over the socket."""
    return json.dumps(words).encode() + b"\n"


class Channel:
    """A running forwarder. It ends with this process, however that one ends.

    Parameters
    ----------
    plan : dict
        See `Forwarder.build`.

    Attributes
    ----------
    pid : int
        Its process id.
    namespaces : list of int
        File descriptors of the hosts' network namespaces; the caller closes them.
    addresses : list of list of str
        What each host got, with prefix lengths.

    Raises
    ------
    HostsError
        When it cannot build the hosts.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._unread = b""
        self._ended = False
        self.namespaces: list[int] = []
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.hosts.forwarder", str(os.getpid()), str(theirs.fileno())],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        self.pid = self._process.pid
        try:
            with self._bounded():
                self._socket.sendall(line_of(plan))
                self._unread, self.namespaces, _, _ = socket.recv_fds(
                    self._socket, 1 << 16, MAX_HOSTS, socket.MSG_CMSG_CLOEXEC
                )
                answer = self._answer()
        except BaseException:
            self._process.kill()
            self.wait()
            for namespace in self.namespaces:
                os.close(namespace)
            raise
        self.addresses: list[list[str]] = answer["addresses"]

    def order(self, words: dict[str, Any]) -> dict[str, Any]:
        """One order and its answer; the order is carried out when this returns.

        Raises
        ------
        HostsError
            When the forwarder has ended, does not answer, or says no.
        """
        with self._lock, self._bounded():
            self._socket.sendall(line_of(words))
            return self._answer()

    def end(self) -> None:
        """Tell it that it is over, and see it end."""
        with contextlib.suppress(HostsError):  # one that has died needs no order
            self.order({"do": "end"})
        self._ended = True
        self.wait()

    def wait(self) -> None:
        """Wait for the process, with force if need be."""
        self._socket.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise HostsError(f"the forwarder gave no answer within {PATIENCE:g} s") from None
        except OSError:
            raise HostsError("the world has ended" if self._ended else "the forwarder has died") from None

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionResetError
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HostsError(answer["error"])
        return answer
