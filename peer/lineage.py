"""Which states of a subject were certified lately, as this peer saw it: what late work may be based on."""

from __future__ import annotations

from collections import OrderedDict

from blockswarm.swarm.policy.contributing import STALEST

KEPT = STALEST + 2
"""States remembered: the oldest that late work may be based on is among them."""


class Lineage:
    """Rounds and digests of one subject's certified states, without a gap from the oldest to the newest."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, bytes] = OrderedDict()

    def stand_at(self, round_number: int, digest: bytes) -> None:
        """Our newest state. If it is not the one noted last, it was fetched: of what lies between nothing is known."""
        if not self._digests or next(reversed(self._digests.values())) != digest:
            self._digests.clear()
            self._digests[round_number] = digest

    def note(self, round_number: int, digest: bytes) -> None:
        """A round has made a state out of the one noted last."""
        self._digests[round_number] = digest
        while len(self._digests) > KEPT:
            self._digests.popitem(last=False)

    def problem(self, round_number: int, digest: bytes) -> str:
        """Why this is none of our states; empty when it is one, or when it is older than what we know.

        Who came lately cannot tell; another reducer of the group can, and one word against an update is enough.
        """
        if not self._digests or round_number < next(iter(self._digests)):
            return ""
        known = self._digests.get(round_number)
        if known is None:
            return f"unknown base: no state of round {round_number} was certified here"
        return "" if known == digest else f"unknown base: the state of round {round_number} is another one here"
