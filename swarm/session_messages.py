"""The body of a session's call: what a holder keeps of a text need not be sent again.

====================  =======================================  =====================================================
method                request                                  answer
====================  =======================================  =====================================================
``session.logprobs``  :class:`SessionRequest`                  blob: float32 LE ``[rows, 256]``, natural log
``chain``             :class:`SessionRequest` with a seed, in  as ``chain``; z and rows are of the new bytes
                      a :class:`ChainRequest`
====================  =======================================  =====================================================

The text is named by absolute positions, so that both sides compute the same windows from it. The caller says up to
where it believes the holder to have the text, and proves that both mean the same with a digest; a holder that has not
answers ``unknown-session``, and the caller sends the window from its beginning. So a holder may forget what it likes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from blockswarm.model.windows import plan_windows, window_start
from blockswarm.swarm.errors import MessageError
from blockswarm.swarm.fields import Body, Reader, integer, octets
from blockswarm.swarm.messages import BLOCK, DIGEST, MAX_POSITIONS, SEED

SESSION_BYTES = 16
CHECK_BYTES = 8
POSITION = integer(0, 2**53)


def text_check(text: bytes) -> bytes:
    """The digest by which two sides make sure that they mean the same bytes: BLAKE2b, 8 bytes; empty of nothing."""
    return hashlib.blake2b(text, digest_size=CHECK_BYTES).digest() if text else b""


@dataclass(frozen=True)
class SessionRequest:
    """Body of ``session.logprobs`` and, with ``seed``, a step of a sweep: rows of a text that the holder may know.

    The text is ``[… what the holder has, up to at] + new``, and the rows are ``first … at + len(new) − 1``.
    """

    session: bytes
    """Chosen by the caller; sessions of different callers are different ones whatever they are called."""
    block: int
    digest: bytes
    embedding_digest: bytes
    at: int
    """Absolute position of the first byte of ``new``."""
    new: bytes
    first: int
    """Absolute index of the first row wanted."""
    check: bytes
    """:func:`text_check` of the bytes from the beginning of the first row's window up to ``at``."""
    seed: int | None = None
    """Of the sweep's noise."""

    _FIELDS: ClassVar[dict[str, Reader]] = {
        "session": octets(SESSION_BYTES),
        "block": BLOCK,
        "digest": DIGEST,
        "embedding_digest": DIGEST,
        "at": POSITION,
        "new": octets(least=1, most=MAX_POSITIONS),
        "first": POSITION,
        "check": octets(most=CHECK_BYTES),
    }
    _LOGPROBS = Body(**_FIELDS)
    _SWEEP = Body(**_FIELDS, seed=SEED)

    @classmethod
    def parse(cls, body: object, *, sweep: bool = False) -> SessionRequest:
        """Check a foreign body; :class:`MessageError` names the field at fault."""
        request = cls(**(cls._SWEEP if sweep else cls._LOGPROBS).read(body))
        if request.first >= request.end:
            raise MessageError("first", f"must be below the text's end {request.end}, is {request.first}")
        if sweep and request.first < request.at:
            raise MessageError("first", f"must not be below at = {request.at} in a sweep, is {request.first}")
        return request

    def to_body(self) -> dict[str, Any]:
        """The body as it is sent."""
        names = (*self._FIELDS, *(() if self.seed is None else ("seed",)))
        return {name: getattr(self, name) for name in names}

    @property
    def end(self) -> int:
        """Length of the text."""
        return self.at + len(self.new)

    @property
    def positions(self) -> int:
        """Bytes to be computed, for a holder that has all the others: those that are new or whose rows are wanted."""
        return max(len(self.new), self.rows)

    @property
    def rows(self) -> int:
        """Rows of log-probabilities in the answer."""
        return self.end - self.first

    def windows(self, context: int) -> list[tuple[int, int, int]]:
        """The windows that hold the rows, see ``plan_windows``; checked against the model's context.

        Raises
        ------
        MessageError
            When the text begins before or behind the first window, when there is more than fits one request, or a
            sweep's rows are not all in one window.
        """
        start = window_start(self.first, context)
        if self.at < start:
            raise MessageError("at", f"must not lie before the window, which begins at {start}, is {self.at}")
        if bool(self.check) != (self.at > start) or (self.check and len(self.check) != CHECK_BYTES):
            raise MessageError("check", f"must be {CHECK_BYTES} bytes where the window begins before at, else empty")
        if self.rows > MAX_POSITIONS:
            raise MessageError("first", f"{self.rows} rows, at most {MAX_POSITIONS} in one request")
        windows = plan_windows(self.end, context, self.first)
        if self.seed is not None and len(windows) > 1:
            raise MessageError("new", "must not go beyond the window in a sweep")
        if len(windows) > 1 and sum(stop - begin for begin, stop, _ in windows) > MAX_POSITIONS:
            raise MessageError("first", f"its windows hold more than {MAX_POSITIONS} bytes")
        return windows
