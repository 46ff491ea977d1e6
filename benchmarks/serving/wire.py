"""What the plain pipeline speaks: messages of a fixed head, over TCP without delay."""

from __future__ import annotations

import socket
import struct

HEAD = struct.Struct("<?II")
"""Whether a new window begins; bytes of text; bytes of values after them."""


def send(line: socket.socket, *, fresh: bool, text: bytes, values: bytes = b"") -> None:
    """One message."""
    line.sendall(HEAD.pack(fresh, len(text), len(values)) + text + values)


def receive(line: socket.socket) -> tuple[bool, bytes, bytes]:
    """The next message.

    Raises
    ------
    EOFError
        When the other side has ended.
    """
    fresh, text, values = HEAD.unpack(_exactly(line, HEAD.size))
    return fresh, _exactly(line, text), _exactly(line, values)


def dial(address: str) -> socket.socket:
    """A connection to ``host:port``."""
    host, port = address.rsplit(":", 1)
    return tuned(socket.create_connection((host, int(port)), timeout=60))


def tuned(line: socket.socket) -> socket.socket:
    """Send at once, whatever is small; and end when nothing comes for a minute."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.settimeout(60)
    return line


def _exactly(line: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = line.recv(size - len(found))
        if not piece:
            raise EOFError("the other side has ended")
        found += piece
    return bytes(found)
