"""How many bytes a draft should have: more are worth their time while enough of them are accepted. Pure."""

from __future__ import annotations

LONGEST_DRAFT = 32
"""Bytes of a draft at most: 33 rows, 33 KiB an answer."""

PIECE = 8
"""Bytes of a draft that are asked about at once where several questions may be under way: the first go out while the
next are guessed, and their rows come back while those of the next are on their way."""

LONGEST_UNANSWERED = 64
"""Bytes guessed and not answered at most, over all questions under way."""

ROW_SECONDS = 1024 * 8 / 20e6
"""What one more row of one block costs until it is measured: a kilobyte over a line of 20 Mbit/s."""

FIRST_ROUND_TRIP = 0.05
"""Seconds taken for a round trip before one was measured."""

PRIOR_ACCEPTED, PRIOR_REFUSED = 3.0, 1.0
"""Bytes taken for accepted and refused before any were: a first draft is a few bytes long."""

MEMORY = 0.9
"""Share of its weight that what was seen keeps at every round trip: the last ten or so decide."""


class DraftPace:
    """Finds the length that gives most bytes a second, from what came of the drafts so far.

    If each byte of a draft is accepted with probability a, a draft of n bytes yields ``1 + a + … + aⁿ`` bytes (the one
    after the accepted ones comes along) and takes ``round trip + n · cost``.

    Parameters
    ----------
    blocks : int
        Blocks that answer, each a row for every byte of the draft.
    """

    def __init__(self, blocks: int) -> None:
        self._row_seconds = blocks * ROW_SECONDS
        self._accepted, self._refused = PRIOR_ACCEPTED, PRIOR_REFUSED
        self._round_trip: float | None = None
        self._drafting = 0.0

    @property
    def acceptance(self) -> float:
        """Probability that a byte of a draft is accepted when those before it were."""
        return self._accepted / (self._accepted + self._refused)

    def length(self, most: int) -> int:
        """Bytes to draft next, 1 … ``most``; 0 only if ``most`` is.

        One byte costs next to nothing and shows when drafts become good again, so it never falls below one.
        """
        return self._worth(min(most, LONGEST_DRAFT))

    def piece(self, most: int, unanswered: int) -> int:
        """Bytes to draft next where several questions may be under way; 0 to wait for an answer.

        As many bytes as are worth asking about are asked about, in equal pieces. What is answered well makes room for
        the next piece, so that with good guesses answers never stop coming.

        Parameters
        ----------
        most : int
            Bytes that are still wanted.
        unanswered : int
            Bytes asked about and not answered. With none, 0 is returned only if ``most`` is.
        """
        worth = self._worth(min(most + unanswered, LONGEST_UNANSWERED))
        size = -(-worth // -(-worth // PIECE)) if worth else 0
        left = min(most, worth - unanswered)
        if not unanswered:
            return min(size, left)
        return min(size, left) if 2 * left >= size else 0

    def made(self, drafted: int, seconds: float) -> None:
        """Take in that making a draft of ``drafted`` bytes took ``seconds``."""
        if drafted:
            self._drafting += 0.3 * (seconds / drafted - self._drafting)

    def _worth(self, most: int) -> int:
        """Bytes that give most of the text a second, 1 … ``most``."""
        trip = FIRST_ROUND_TRIP if self._round_trip is None else self._round_trip
        cost, best, best_rate = self._row_seconds + self._drafting, 0, 0.0
        share = expected = 1.0
        for n in range(1, most + 1):
            share *= self.acceptance
            expected += share
            rate = expected / (trip + n * cost)
            if rate <= best_rate:
                break
            best, best_rate = n, rate
        return best

    def note(self, *, drafted: int, accepted: int, seconds: float | None) -> None:
        """Take in how a draft went.

        Parameters
        ----------
        drafted, accepted : int
            Bytes that were asked about, and how many of them stand in the text now.
        seconds : float, optional
            From asking to the answers of all blocks; None if others were under way before, which says little.
        """
        if seconds is not None:
            bare = max(1e-4, seconds - drafted * self._row_seconds)
            self._round_trip = bare if self._round_trip is None else self._round_trip + 0.3 * (bare - self._round_trip)
        if not drafted:
            return
        self._accepted = MEMORY * self._accepted + accepted
        self._refused = MEMORY * self._refused + (accepted < drafted)
