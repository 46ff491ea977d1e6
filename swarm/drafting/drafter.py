"""What every drafter is: it proposes bytes, and is told what the swarm says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blockswarm.swarm.answers import Float32

Choose = Callable[[Float32, int], int]
"""The byte that decoding takes from log-probabilities, float32 ``[256]``, at an absolute position of the text.

A drafter draws with the noise of the verification: the nearer its probabilities, the likelier the very same byte."""

Predict = Callable[[bytes], Float32]
"""Log-probabilities, float32 ``[256]``, of the byte after a text."""


class Drafter(Protocol):
    """Guesses how a text goes on. What it proposes is checked by the swarm, so it may be wrong, never unsafe."""

    heavy: bool
    """Whether a draft takes milliseconds: then it is made beside the client's loop."""

    def propose(self, text: bytes, most: int, choose: Choose) -> bytes:
        """Bytes that may follow ``text``, ``most`` at most; none if it has no idea."""
        ...

    def learn(self, text: bytes, rows: Float32) -> None:
        """Be told what the swarm predicts.

        Parameters
        ----------
        text : bytes
            A text with a draft at its end, whether it was accepted or not.
        rows : float32 ``[n, 256]``
            Log-probabilities of the byte after each of the last n prefixes of ``text``, the whole of it last.
        """
        ...
