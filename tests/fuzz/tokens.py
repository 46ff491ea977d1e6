"""Pieces that decoders have stumbled over, anywhere: mutations put them into good inputs."""

from __future__ import annotations

import struct

TOKENS: tuple[bytes, ...] = (
    # msgpack: lengths that nothing follows, and containers in containers
    b"\xdd\xff\xff\xff\xff",
    b"\xdd\x00\x00\xc3\x50",
    b"\xdc\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xde\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc4\x00",
    b"\x91" * 16,
    b"\x81\xa1a" * 8,
    b"\x90",
    b"\x80",
    # msgpack: kinds
    b"\xc0",
    b"\xc1",
    b"\xc2",
    b"\xc3",
    b"\xd4\xff\x00",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\xc7\x00\x05",
    b"\xc7\xff\x01",
    b"\xa0",
    b"\xa1\xff",
    b"\xd9\x01a",
    # numbers
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xcb" + struct.pack(">d", float("nan")),
    b"\xcb" + struct.pack(">d", float("inf")),
    b"\xcb" + struct.pack(">d", -0.0),
    b"\xca" + struct.pack(">f", float("nan")),
    struct.pack("<f", float("nan")),
    struct.pack("<f", float("-inf")),
    struct.pack("<Q", (1 << 64) - 1),
    struct.pack("<Q", 1 << 31),
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x80\x7f",
    # text that is read as a number
    b"\xa2-1",
    b"\xa3inf",
    b"\xa3nan",
    b"\xbe" + b"9" * 30,
    # text
    b"\x00",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b"\xef\xbb\xbf",
    "\u2028".encode(),
    "\u202e".encode(),
    "\u0661".encode(),  # a digit, but not an ASCII one
    b"0x" + b"f" * 40,
    b"9" * 40,
    b"1e999",
    b"nan",
    b"[[[[[[[[",
    b"{a={a={a={",
    b".a.a.a.a",
    b'"""',
    b"\\u0000",
    b"/p2p-circuit",
    b"/ip6/::1%eth0",
)
