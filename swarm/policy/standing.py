"""How long a peer whose updates had to be refused stays out; every peer keeps its own book (docs/protocol.md §6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FORGIVEN = 1
"""Refusals in a row without a consequence: anyone may come back with old work once."""

LONGEST = 64
"""Rounds a peer stays out at most; it doubles with every refusal up to this."""

MOST_PEERS = 4096
"""Peers remembered; of more, those that were refused longest ago are forgotten first."""

FAULTS = ("not finite", "wrong shape", "wrong length", "norm ")
"""How reasons begin that are the sender's own doing. Being late or unheard is not: networks do that."""


def is_fault(reason: str) -> bool:
    """Whether an update was refused for what it is, not for when it came."""
    return reason.startswith(FAULTS)


@dataclass
class _Record:
    refusals: int = 0
    until: int = 0
    """First round in which it may take part again."""


class Standing:
    """Refusals in a row, by peer, of one subject."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def note(self, round_number: int, accepted: Iterable[str], rejected: Mapping[str, str]) -> None:
        """Take in what a round decided.

        Parameters
        ----------
        round_number : int
            The round.
        accepted : iterable of str
            Whose updates were in the average: their refusals are forgotten.
        rejected : mapping
            Peer to reason, of those whose updates the decision leaves out.
        """
        for peer_id in accepted:
            self._records.pop(peer_id, None)
        for peer_id, reason in rejected.items():
            if not is_fault(reason):
                continue
            record = self._records.pop(peer_id, None) or _Record()
            record.refusals += 1
            if record.refusals > FORGIVEN:
                record.until = round_number + 1 + min(LONGEST, 2 ** (record.refusals - FORGIVEN - 1))
            self._records[peer_id] = record  # the one refused last stands last
        while len(self._records) > MOST_PEERS:
            del self._records[next(iter(self._records))]

    def out(self, round_number: int) -> dict[str, int]:
        """Who stays out of ``round_number``, and until which round."""
        return {peer_id: record.until for peer_id, record in self._records.items() if record.until > round_number}
