"""The bootstrap peers file: one full multiaddr a line, ``#`` begins a comment."""

from __future__ import annotations

import shlex
from pathlib import Path

from blockswarm.dht.addresses import parse_multiaddr, split_peer
from blockswarm.dht.errors import AddressError, PeersFileError
from blockswarm.files import write_atomically
from blockswarm.naming import option

_MAX_BYTES = 1 << 20
_SHOWN_LINES = 20
_MOST_BAD_LINES = 100
"""A file that is no peers file at all has a bad line for each of its lines: after so many it is not read on."""

_HEADER = "# Peers to join the swarm through, one multiaddr a line. Any peer that is running will do.\n"


def read_peers_file(path: str | Path) -> list[str]:
    """The addresses in ``path``, in file order without duplicates; possibly none.

    Raises
    ------
    PeersFileError
        If the file cannot be read, or lines are bad: they are named (``file:line: reason``), the first hundred of them.
    """
    path = Path(path)
    addrs: dict[str, None] = {}
    problems = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            addrs[parse_multiaddr(text, need_peer=True)] = None
        except AddressError as error:
            problems.append(f"{path}:{number}: {error}")
            if len(problems) == _MOST_BAD_LINES:
                break
    if problems:
        many = f"{len(problems)} or more" if len(problems) == _MOST_BAD_LINES else f"{len(problems)}"
        count = "1 bad line" if len(problems) == 1 else f"{many} bad lines"
        told = "; ".join(problems[:_SHOWN_LINES]) + ("; …" if len(problems) > _SHOWN_LINES else "")
        raise PeersFileError(f"{count} in the peers file: {told}", problems)
    return list(addrs)


def names_nobody(path: str | Path) -> PeersFileError:
    """The error for a peers file without an address, where one is needed."""
    return PeersFileError(f"peers file {path} names no peer yet: {_what_to_do(Path(path))}")


def _what_to_do(path: Path) -> str:
    start = f"`blockswarm bootstrap --init tiny --peers-file {shlex.quote(str(path))}`"
    other = option("peers", "MULTIADDR", flag="--peer")
    return f"start a bootstrap node with {start}, write the address of a running peer into it, or give {other}"


def add_to_peers_file(path: str | Path, addr: str) -> None:
    """Add ``addr`` to ``path``, made if need be; comments and other lines stay, former addresses of that peer go.

    Only former addresses of the same kind go (IPv4 or IPv6, TCP or QUIC): a peer that comes back on another port leaves
    one line, one that listens on two transports has two.

    Raises
    ------
    AddressError
        If ``addr`` is not a full multiaddr.
    PeersFileError
        If the file cannot be read or written.
    """
    path = Path(path)
    addr = parse_multiaddr(addr, need_peer=True)
    kept: list[str] = []
    try:
        lines = _read(path).splitlines()
    except PeersFileError:
        if path.exists():
            raise
        lines = _HEADER.splitlines()
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text or not _replaces(addr, text):
            kept.append(line)
        elif text == addr:
            return
    try:
        write_atomically(path, ("\n".join([*kept, addr]) + "\n").encode())
    except OSError as error:
        raise PeersFileError(f"peers file {path} cannot be written: {error.strerror}") from None


def _replaces(addr: str, former: str) -> bool:
    try:
        bare, peer_id = split_peer(addr)
        former_bare, former_peer = split_peer(former)
    except AddressError:
        return False
    return former_peer == peer_id and _kind(bare) == _kind(former_bare)


def _kind(bare: str) -> tuple[str, str]:
    parts = bare.split("/")
    return parts[1], "/".join(part for part in parts[3:] if not part.isdigit())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise PeersFileError(f"peers file {path} does not exist: {_what_to_do(path)}") from None
    except OSError as error:
        raise PeersFileError(f"peers file {path} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise PeersFileError(f"peers file {path} is larger than 1 MiB; is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PeersFileError(f"peers file {path} is not text") from None
