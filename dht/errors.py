"""Everything that can go wrong on purpose between a peer and the network, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockswarm.errors import BlockswarmError, UsageError


class DhtError(BlockswarmError):
    """Root of the errors of this package."""


class IdentityError(DhtError):
    """An identity file that cannot be used, or an identity that is already running elsewhere."""


class AddressError(DhtError, UsageError):
    """A multiaddr that cannot be used."""


class PortError(DhtError):
    """An address that cannot be listened on now: its port is taken, or only for the administrator."""


class PeersFileError(DhtError, UsageError):
    """A peers file that is missing, has bad lines, or names nobody.

    Attributes
    ----------
    problems : list of str
        One ``file:line: reason`` for each of the first hundred bad lines, in file order.
    """

    def __init__(self, text: str, problems: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.problems = list(problems)


class HostError(DhtError):
    """The p2p host could not start, or its daemon is gone."""


class RecordError(DhtError):
    """A record of the directory that must not be believed; the message is the reason."""


class FrameError(DhtError):
    """Bytes on an RPC stream that are not a valid frame."""


class RpcRefused(DhtError):
    """What a handler raises to turn a call down; everything in it travels to the caller.

    Parameters
    ----------
    code : str
        Short machine-readable reason, for instance ``"busy"``.
    text : str
        One line a stranger may read.
    detail : mapping, optional
        Extra values for the caller's program (plain msgpack types).
    """

    def __init__(self, code: str, text: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.detail = dict(detail or {})


class RpcError(DhtError):
    """A call that brought no answer, or a refusal.

    Codes set on this side: ``unreachable`` (no connection, or it broke), ``timeout`` (deadline passed), ``protocol``
    (the other side speaks something else). All other codes come from the peer: ``busy``, ``wrong-run``,
    ``unknown-method``, ``too-large``, ``bad-request``, ``internal``, and those of the methods themselves.

    Attributes
    ----------
    code : str
        Machine-readable reason.
    text : str
        The reason in one line.
    detail : dict
        What the peer added (plain msgpack types), else empty.
    """

    def __init__(self, code: str, text: str = "", detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.detail = dict(detail or {})
