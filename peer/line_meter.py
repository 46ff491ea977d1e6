"""What this peer's line carries, measured on the parts of rounds as they travel anyway."""

from __future__ import annotations

from dataclasses import dataclass, field

from blockswarm.swarm.policy.parts import MAX_RATE, Bandwidth

LEAST_BYTES = 64 * 1024
"""A burst says nothing before so much of it has arrived: it measures delays."""

KEPT = 8
"""Bursts that are remembered, each way: a line that has become slower is believed after four rounds."""


@dataclass
class _Burst:
    began: float
    done: int = 0
    rate: float = 0.0


@dataclass
class OneWay:
    """One direction of a line: transfers of one phase are a burst, however many peers they go to.

    A burst's rate is the most that had arrived by any moment, over the time it took: who waits for one slow peer at the
    end is not taken for slow. A line carries at least what it once carried, so the fastest of the last bursts counts.
    Delays are in it, so of small parts it says less than the line can; where sizes matter, transfers take long.
    """

    _bursts: dict[tuple[int, str], _Burst] = field(default_factory=dict)

    def begin(self, burst: tuple[int, str], now: float) -> None:
        """A transfer of this burst (round, method) begins."""
        if burst not in self._bursts:
            self._bursts[burst] = _Burst(now)
            for old in list(self._bursts)[:-KEPT]:
                del self._bursts[old]

    def end(self, burst: tuple[int, str], size: int, now: float) -> None:
        """``size`` bytes of it have arrived."""
        known = self._bursts.get(burst)
        if known is None:
            return
        known.done += size
        if known.done >= LEAST_BYTES and now > known.began:
            known.rate = max(known.rate, known.done / (now - known.began))

    @property
    def rate(self) -> int:
        """Bytes/s; 0 while nothing was measured."""
        return min(MAX_RATE, int(max((burst.rate for burst in self._bursts.values()), default=0.0)))


@dataclass
class LineMeter:
    """Both directions of this peer's line.

    Attributes
    ----------
    declared : float, optional
        Upload that its owner gives, bytes/s; in place of what is measured.
    """

    declared: float | None = None
    up: OneWay = field(default_factory=OneWay)
    down: OneWay = field(default_factory=OneWay)

    @property
    def line(self) -> Bandwidth:
        """What to tell others."""
        up = self.up.rate if self.declared is None else min(MAX_RATE, max(1, int(self.declared)))
        return Bandwidth(up, self.down.rate)
