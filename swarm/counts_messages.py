"""What a holder of the counts is asked: rows of log-probabilities, as of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body, integer, listed, octets
from blockswarm.swarm.messages import DIGEST, MAX_POSITIONS, MAX_WINDOWS

METHOD = "counts"


@dataclass(frozen=True)
class CountsRequest:
    """Body of ``counts``; the answer is a blob, float32 LE ``[rows, 256]``, natural log."""

    digest: bytes
    """The file whose rows are wanted, 32 bytes."""
    windows: tuple[bytes, ...]
    """Stretches of text; a row sees at most the last ``order`` bytes, and none before its window."""
    take: tuple[int, ...]
    """First row wanted of each window."""

    _BODY = Body(
        digest=DIGEST,
        windows=listed(octets(least=1, most=MAX_POSITIONS), most=MAX_WINDOWS, least=1),
        take=listed(integer(0, MAX_POSITIONS - 1), most=MAX_WINDOWS, least=1),
    )

    @classmethod
    def parse(cls, body: object) -> CountsRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        request = cls(**cls._BODY.read(body))
        if len(request.take) != len(request.windows):
            raise MessageError("take", f"has {len(request.take)} items for {len(request.windows)} windows")
        positions = sum(map(len, request.windows))
        if positions > MAX_POSITIONS:
            raise MessageError("windows", f"hold {positions} bytes, at most {MAX_POSITIONS} in one request")
        for index, (window, take) in enumerate(zip(request.windows, request.take, strict=True)):
            if take >= len(window):
                raise MessageError(f"take[{index}]", f"must be below the window's {len(window)} bytes, is {take}")
        return request

    @classmethod
    def of(cls, digest: bytes, windows: Sequence[bytes], take: Sequence[int], order: int) -> CountsRequest:
        """The request for the rows from ``take`` on of some windows, cut to the bytes that such rows look at."""
        cut = [max(0, first + 1 - order) for first in take]
        return cls(
            digest,
            tuple(window[begin:] for window, begin in zip(windows, cut, strict=True)),
            tuple(first - begin for first, begin in zip(take, cut, strict=True)),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        return {"digest": self.digest, "windows": list(self.windows), "take": list(self.take)}

    @property
    def rows(self) -> int:
        """Rows of log-probabilities in the answer."""
        return sum(map(len, self.windows)) - sum(self.take)
