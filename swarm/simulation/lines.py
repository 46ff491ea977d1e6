"""What the lines of a round's members can do: both ends of a transfer count, and all that one of them carries."""

from __future__ import annotations

import numpy as np

from blockswarm.swarm.simulation.peers import Bools, Floats, Ints
from blockswarm.swarm.simulation.world import World

BUSY_AT_MOST = 0.8
"""Share of an uplink that other traffic can take from averaging: TCP shares a line between flows."""


class Lines:
    """What the lines of a round's members can do, given that both subjects of a peer share them."""

    def __init__(self, world: World, row: Ints, present: Bools) -> None:
        peers = world.peers
        busy = np.minimum(BUSY_AT_MOST, peers.bytes_before[row] / peers.up[row])
        self.delay = np.where(present, peers.delay[row], 0.0)
        self.up = peers.up[row] * (1.0 - busy)
        self.down = peers.down[row]
        self._row, self._present = row, present

    def times(self, sending: Floats, receiving: Floats) -> Floats:
        """Seconds until what is sent from one to another has arrived, shape [lists, from, to]."""
        out, into = self.seconds(sending, receiving)
        travel = self.delay[:, :, None] + self.delay[:, None, :]
        return np.asarray(np.maximum(out[:, :, None], into[:, None, :]) + travel)

    def seconds(self, sending: Floats, receiving: Floats) -> tuple[Floats, Floats]:
        """Seconds that each member's line needs for what it sends, and for what it receives."""
        return self._seconds(sending, self.up), self._seconds(receiving, self.down)

    def moved(self, amounts: Floats, lasting: Floats) -> Floats:
        """Which share of what a member sends has left by the end of a phase: then sending is cut off.

        ``lasting`` are the seconds of the phase, shape [groups].
        """
        wanted = np.maximum(self._seconds(amounts, self.up), 1e-9)
        return np.asarray(np.minimum(1.0, np.maximum(lasting, 0.0)[:, None] / wanted))

    def _seconds(self, amounts: Floats, rate: Floats) -> Floats:
        # A peer that is in two lists, of its block and of the embedding, moves the parts of both at once.
        total = np.bincount(self._row[self._present], weights=amounts[self._present], minlength=1)
        everything = np.where(self._present, total[np.minimum(self._row, len(total) - 1)], 0.0)
        return np.asarray(everything / rate)
