"""What a holder of the counts is asked: rows of log-probabilities, as of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockswarm.swarm.fields import Body
from blockswarm.swarm.messages import DIGEST, TAKE, WINDOWS, Windowed, check_windows

METHOD = "counts"


@dataclass(frozen=True)
class CountsRequest(Windowed):
    """Body of ``counts``; the answer is a blob, float32 LE ``[rows, 256]``, natural log."""

    digest: bytes
    """The file whose rows are wanted, 32 bytes."""
    windows: tuple[bytes, ...]
    """Stretches of text; a row sees at most the last ``order`` bytes, and none before its window."""
    take: tuple[int, ...]
    """First row wanted of each window."""

    _BODY = Body(digest=DIGEST, windows=WINDOWS, take=TAKE)

    @classmethod
    def parse(cls, body: object) -> CountsRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        values = cls._BODY.read(body)
        check_windows(values["windows"], take=values["take"])
        return cls(**values)

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
