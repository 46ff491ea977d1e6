"""What the kernel gives: network namespaces, TUN devices, and who lives in a namespace. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import importlib.util
import ipaddress
import os
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.hosts.errors import HostsError

CLONE_NEWNET = 0x40000000
DEVICE = "net0"
"""Name of the TUN device in every namespace."""

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PR_SET_TIMERSLACK = 29
_IFA_F_NODAD = 0x02
_TUN = Path("/dev/net/tun")
_TUN_NUMBER = (10, 200)

NamespaceId = tuple[int, int]
"""Device and inode of a namespace: what makes it the same one."""

Result = TypeVar("Result")


def leave_network() -> int:
    """Move the calling thread into a new network namespace of its own; a file descriptor of it.

    Raises
    ------
    OSError
        Without CAP_SYS_ADMIN, or where a sandbox forbids it.
    """
    _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET), "unshare")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_network(namespace: int) -> None:
    """Move the calling thread into the network namespace behind a file descriptor."""
    _check(ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET), "setns")


def in_thread(function: Callable[[], Result]) -> Result:
    """``function()`` in a thread of its own, which takes the namespace it moved to along when it ends."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="in-network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def open_tun(device: Path = _TUN) -> int:
    """A TUN device called `DEVICE` in the namespace of the calling thread, as a non-blocking file descriptor.

    A read gives one IP packet, a write takes one. The device is gone when the descriptor is closed.

    Raises
    ------
    OSError
        When the kernel or a sandbox does not give it.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        tun = os.open(device, flags)
    except FileNotFoundError:
        # Containers often lack the node though the kernel has the driver; a node of our own needs no place in /dev.
        with tempfile.TemporaryDirectory() as folder:
            node = Path(folder) / "tun"
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(*_TUN_NUMBER))
            tun = os.open(node, flags)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun


def raise_interfaces(addresses: Sequence[str], *, mtu: int, queue: int) -> list[str]:
    """Bring up loopback and the TUN device of the calling thread's namespace, the latter with ``addresses``.

    Parameters
    ----------
    addresses : sequence of str
        Each with its prefix length, as in ``10.77.0.1/16``: the network that lies behind the device.
    mtu : int
        Largest packet, bytes.
    queue : int
        Packets the kernel keeps until they are fetched.

    Returns
    -------
    list of str
        Those of ``addresses`` that were given; IPv6 ones are missing where the kernel does not do IPv6.
    """
    from pyroute2 import IPRoute, NetlinkError

    given = []
    with IPRoute() as netlink:
        for name in ("lo", DEVICE):
            (index,) = netlink.link_lookup(ifname=name)
            options = {} if name == "lo" else {"mtu": mtu, "txqlen": queue}
            netlink.link("set", index=index, state="up", **options)
        for address in addresses:
            interface = ipaddress.ip_interface(address)
            options = {"flags": _IFA_F_NODAD} if interface.version == 6 else {}
            try:
                netlink.addr(
                    "add", index=index, address=str(interface.ip), prefixlen=interface.network.prefixlen, **options
                )
            except NetlinkError as error:
                if interface.version == 4 or error.code not in (errno.EACCES, errno.EOPNOTSUPP, errno.EPERM):
                    raise HostsError(f"{address}: {error}") from None
            else:
                given.append(address)
    return given


def packed(address: str) -> bytes:
    """The bytes of an IP address given with its prefix length."""
    return ipaddress.ip_interface(address).ip.packed


def set_congestion_control(name: str) -> None:
    """Let TCP in the calling thread's namespace use the congestion control ``name``.

    Raises
    ------
    HostsError
        When the kernel does not have it; the message says which it has.
    """
    folder = Path("/proc/sys/net/ipv4")
    try:
        (folder / "tcp_congestion_control").write_text(name)
    except OSError as error:
        available = (folder / "tcp_available_congestion_control").read_text().strip()
        raise HostsError(f"congestion control {name!r}: {error.strerror}; this kernel has: {available}") from None


def wake_punctually() -> None:
    """Let the calling thread's waits end when they should instead of up to 50 µs later."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def namespace_id(path: str | int) -> NamespaceId:
    """Identity of the namespace behind a path or file descriptor."""
    status = os.fstat(path) if isinstance(path, int) else Path(path).stat()
    return status.st_dev, status.st_ino


def processes_in(namespaces: Collection[NamespaceId]) -> list[psutil.Process]:
    """Every living process in one of the network namespaces, whoever started it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):  # it ended meanwhile
            if namespace_id(f"/proc/{process.pid}/ns/net") in namespaces and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@functools.cache
def why_not() -> str | None:
    """Why hosts cannot be built here, in one line; None if they can. Tries it out."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, this is {sys.platform}"
    if importlib.util.find_spec("pyroute2") is None:
        return "pyroute2 is not installed: pip install 'blockswarm[dev]'"
    try:
        in_thread(_try_out)
    except OSError as error:
        root = "" if os.geteuid() == 0 else "; it needs root"
        return f"no network namespaces with TUN devices here: {error}{root}"
    return None


def _try_out() -> None:
    os.close(leave_network())
    os.close(open_tun())


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
