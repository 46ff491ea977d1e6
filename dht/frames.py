"""The bytes on an RPC stream, and nothing else: no sockets, no event loop, so every transport can share them.

One stream (libp2p protocol ``/blockswarm/rpc/1``) carries request and reply in turn, any number of times::

    request   4-byte big-endian length | msgpack map {"v", "run", "m", "b", "n"} | n raw bytes
    reply     4-byte big-endian length | msgpack map {"ok": true,  "b", "n"}     | n raw bytes
    refusal   4-byte big-endian length | msgpack map {"ok": false, "e", "t", "b"}

``v`` protocol version, ``run`` manifest digest (32 bytes) or nil, ``m`` method, ``b`` body, ``n`` length of the blob
that follows the header, ``e`` error code, ``t`` its text. All lengths are exact: an early end is an error, never a
short answer. A caller keeps its half of the stream open until it has the reply; ending it earlier withdraws the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockswarm.dht.errors import FrameError
from blockswarm.dht.packing import PackingError, pack, unpack_map

PROTOCOL_ID = "/blockswarm/rpc/1"
PROTOCOL_VERSION = 1

PREFIX_BYTES = 4
MAX_HEADER = 1 << 20
"""Largest header in bytes, checked before anything is allocated."""
MAX_BLOB = 1 << 30
"""No declared blob may be larger, whatever a method allows: a typo in a cap must not become a terabyte."""
MAX_METHOD = 64
MAX_CODE = 64
MAX_TEXT = 1000
DIGEST_BYTES = 32


@dataclass(frozen=True)
class RequestHead:
    """A parsed request header; ``blob_length`` bytes follow it on the stream."""

    version: int
    run: bytes | None
    method: str
    body: dict[str, Any]
    blob_length: int


@dataclass(frozen=True)
class ReplyHead:
    """A parsed reply header: either ``ok`` with a body and a blob to come, or an error code and text."""

    ok: bool
    body: dict[str, Any]
    blob_length: int = 0
    code: str = ""
    text: str = ""


def encode_request(
    method: str,
    body: Mapping[str, Any],
    *,
    run: bytes | None = None,
    blob_length: int = 0,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """Prefix and header of a request; the caller writes ``blob_length`` raw bytes after it."""
    return _frame({"v": version, "run": run, "m": method, "b": dict(body), "n": blob_length})


def encode_reply(body: Mapping[str, Any], *, blob_length: int = 0) -> bytes:
    """Prefix and header of a good reply; the caller writes ``blob_length`` raw bytes after it."""
    return _frame({"ok": True, "b": dict(body), "n": blob_length})


def encode_error(code: str, text: str, detail: Mapping[str, Any] | None = None) -> bytes:
    """Prefix and header of a refusal."""
    return _frame({"ok": False, "e": code[:MAX_CODE], "t": one_line(text), "b": dict(detail or {})})


def header_length(prefix: bytes) -> int:
    """Length of the header announced by the 4-byte ``prefix``.

    Raises
    ------
    FrameError
        If it is zero or above `MAX_HEADER`.
    """
    length = int.from_bytes(prefix, "big")
    if len(prefix) != PREFIX_BYTES or not 0 < length <= MAX_HEADER:
        raise FrameError(f"a header of {length} bytes was announced; 1 to {MAX_HEADER} are allowed")
    return length


def decode_request(header: bytes) -> RequestHead:
    """Parse a request header.

    A version other than ours is still returned, so that the refusal can name both.

    Raises
    ------
    FrameError
        If the header is not a request.
    """
    fields = _fields(header)
    version = _integer(fields.get("v"), "v", 1 << 31)
    if version != PROTOCOL_VERSION:
        return RequestHead(version, None, "", {}, 0)
    _only(fields, {"v", "run", "m", "b", "n"})
    run, method = fields.get("run"), fields.get("m")
    if run is not None and (not isinstance(run, bytes) or len(run) != DIGEST_BYTES):
        raise FrameError(f"'run' must be nil or {DIGEST_BYTES} bytes")
    if not isinstance(method, str) or not 0 < len(method) <= MAX_METHOD:
        raise FrameError(f"'m' must be the name of a method (1 to {MAX_METHOD} characters)")
    return RequestHead(version, run, method, _body(fields), _integer(fields.get("n"), "n", MAX_BLOB))


def decode_reply(header: bytes) -> ReplyHead:
    """Parse a reply header.

    Raises
    ------
    FrameError
        If the header is not a reply.
    """
    fields = _fields(header)
    if fields.get("ok") is True:
        _only(fields, {"ok", "b", "n"})
        return ReplyHead(True, _body(fields), _integer(fields.get("n"), "n", MAX_BLOB))
    if fields.get("ok") is not False:
        raise FrameError("'ok' must be true or false")
    _only(fields, {"ok", "e", "t", "b"})
    code, text = fields.get("e"), fields.get("t")
    if not isinstance(code, str) or not 0 < len(code) <= MAX_CODE or not isinstance(text, str):
        raise FrameError("a refusal needs a code 'e' and a text 't'")
    return ReplyHead(False, _body(fields), 0, one_line(code), one_line(text))


def one_line(text: str) -> str:
    """``text`` as one printable line of at most `MAX_TEXT` characters: a stranger's words must not drive a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_TEXT])


def version_mismatch(theirs: int, ours: int = PROTOCOL_VERSION) -> str:
    """The line both sides show when versions differ: which is which, and who must upgrade."""
    who = "the caller must upgrade blockswarm" if theirs < ours else "the answering peer must upgrade blockswarm"
    return f"the caller speaks protocol {theirs}, this peer speaks {ours}; {who}"


def _frame(fields: dict[str, Any]) -> bytes:
    try:
        header = pack(fields)
    except PackingError as error:
        raise FrameError(f"cannot be sent: {error}") from None
    if len(header) > MAX_HEADER:
        raise FrameError(f"a header of {len(header)} bytes is too large to send; at most {MAX_HEADER}")
    return len(header).to_bytes(PREFIX_BYTES, "big") + header


def _fields(header: bytes) -> dict[str, Any]:
    try:
        return unpack_map(header, max_bytes=MAX_HEADER)
    except PackingError as error:
        raise FrameError(f"header: {error}") from None


def _only(fields: dict[str, Any], allowed: set[str]) -> None:
    if unknown := fields.keys() - allowed:
        raise FrameError(f"header has an unknown field {one_line(min(unknown))[:32]!r}")


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    body = fields.get("b")
    if not isinstance(body, dict):
        raise FrameError("'b' must be a map")
    return body


def _integer(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise FrameError(f"'{name}' must be an integer from 0 to {most}")
    return value
