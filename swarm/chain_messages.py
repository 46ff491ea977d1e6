"""The bodies of the calls with which z travels from holder to holder.

==============  =============================  ===================================================================
method          request                        answer
==============  =============================  ===================================================================
``chain``       :class:`ChainRequest`          ``{"last": false}`` once z has been handed on; from the last block
                                               ``{"last": true}`` and what ``sweep`` answers, or the bytes drawn
``chain.z``     :class:`ZArrives`, blob z      nothing
                float32 ``[positions, d]``,
                or narrow (``swarm/narrow_z``)
==============  =============================  ===================================================================

A client asks the holders of all blocks at the same time, under one token. Block 0 begins, every other one waits for the
z that comes under the token, and the last one answers: one traversal, and nobody has to reach the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body, Optional, flag, integer, nested, number, octets, peer_id
from blockswarm.swarm.messages import MAX_POSITIONS, SweepRequest
from blockswarm.swarm.session_messages import SessionRequest

TOKEN_BYTES = 16

MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class Draw:
    """How the last holder is to draw one byte from each row, with the sweep's seed: the bytes are all that travels."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    _BODY = Body(
        temperature=number(0.0, MAX_TEMPERATURE),
        top_k=Optional(integer(0, 256), 0),
        top_p=Optional(number(1e-9, 1.0), 1.0),
    )

    @classmethod
    def parse(cls, body: object) -> Draw:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


@dataclass(frozen=True)
class ChainRequest:
    """Body of ``chain``: a sweep's step whose z comes from the holder before, and goes to the one after."""

    sweep: SweepRequest | SessionRequest
    """The step: of whole windows, or with a seed of a text that the holders may know."""
    token: bytes
    """Names this traversal; nobody can guess it."""
    next: str | None = None
    """Peer id of the holder of the next block; none for the last block."""
    draw: Draw | None = None
    """For the last block: answer drawn bytes instead of log-probabilities. With whole windows only."""
    narrow: bool = False
    """Whether z travels at 8 bits a value; the same in all calls of a traversal. With whole windows only."""

    _BODY = Body(
        sweep=Optional(nested(SweepRequest.parse)),
        session=Optional(nested(partial(SessionRequest.parse, sweep=True))),
        token=octets(TOKEN_BYTES),
        next=Optional(peer_id()),
        draw=Optional(nested(Draw.parse)),
        narrow=Optional(flag(), False),
    )

    @classmethod
    def parse(cls, body: object) -> ChainRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        values = cls._BODY.read(body)
        sweep, session = values.pop("sweep"), values.pop("session")
        if (sweep is None) == (session is None):
            raise MessageError("sweep", "either this or session must be there")
        for name in ("draw", "narrow"):
            if session is not None and values[name]:
                raise MessageError(name, "must not be there with a session")
        return cls(sweep=sweep or session, **values)

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        kind = "session" if isinstance(self.sweep, SessionRequest) else "sweep"
        body: dict[str, Any] = {kind: self.sweep.to_body(), "token": self.token}
        if self.next is not None:
            body["next"] = self.next
        if self.draw is not None:
            body["draw"] = self.draw.to_body()
        if self.narrow:
            body["narrow"] = True
        return body


@dataclass(frozen=True)
class ZArrives:
    """Body of ``chain.z``."""

    token: bytes
    positions: int
    narrow: bool = False

    _BODY = Body(token=octets(TOKEN_BYTES), positions=integer(1, MAX_POSITIONS), narrow=Optional(flag(), False))

    @classmethod
    def parse(cls, body: object) -> ZArrives:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        return cls(**cls._BODY.read(body))

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        body: dict[str, Any] = {"token": self.token, "positions": self.positions}
        return body | {"narrow": True} if self.narrow else body
