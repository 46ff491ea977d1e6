"""The volunteers of a simulated swarm as columns: one row a session, drawn from the scenario."""

from __future__ import annotations

import math
from typing import Any

import base58
import numpy as np
import numpy.typing as npt

from blockswarm.swarm.simulation.scenario import LogNormal, Scenario

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BLOCK, EMBEDDING = 0, 1
"""Columns of what a volunteer has of each of its two subjects."""

PLACING, FETCHING, TRAINING = 0, 1, 2
"""A volunteer looks for a block, fetches its states, trains."""

PURPOSES = ("averaging", "states", "meeting", "directory", "serving")
"""What bytes are for."""

RECORD_SECONDS = 45.0
"""Life of a directory record, renewed at a third of it (``peer/view.py``)."""

_PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Of the peer id of an Ed25519 key: the policies hash ids, so they must look like those of real peers."""


class Peers:
    """Rows of volunteers, in order of arrival; a row stays when its volunteer has left.

    Parameters
    ----------
    scenario : Scenario
        What they are drawn from.
    rng : numpy Generator
        The randomness of the simulation.
    sample_flops : float
        Operations of one training sample.
    """

    _FLOATS = ("joined", "leaves", "record_until", "announced", "ready", "first_commit", "up", "down", "delay",
               "speed", "flops", "pending", "bytes_before", "messages", "place")  # fmt: skip
    _INTS = ("block", "stage", "side", "order")
    _BOOLS = ("goodbye", "hidden", "relayed", "liar", "warm")

    joined: Floats
    """Seconds since the beginning; of those there at the beginning 0."""
    leaves: Floats
    record_until: Floats
    """When its last record goes, after it has left."""
    announced: Floats
    """Since when others find it in the directory."""
    ready: Floats
    """Since when it trains."""
    first_commit: Floats
    up: Floats
    """Bytes/s."""
    down: Floats
    delay: Floats
    """Its half of a round trip, seconds: one between two volunteers takes the sum of both."""
    speed: Floats
    """Samples/s in training."""
    flops: Floats
    pending: Floats
    """Samples trained that no certified state contains."""
    bytes_before: Floats
    """Bytes/s it sent in the last round for anything but averaging: its uplink is that much slower."""
    messages: Floats
    """Directory messages sent and answered."""
    place: Floats
    """Between 0 and 1: where a key has room for a share of its records only, those below it are in."""
    block: Ints
    """-1 before it has chosen."""
    stage: Ints
    side: Ints
    """In a partition the part it is in."""
    order: Ints
    """Its place when ids are sorted, as peers sort them."""
    goodbye: Bools
    hidden: Bools
    """Behind a NAT without a relay: it can dial, and cannot be dialled."""
    relayed: Bools
    liar: Bools
    warm: Bools
    """There from the beginning."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator, sample_flops: float) -> None:
        self._scenario = scenario
        self._rng = rng
        self._sample_flops = sample_flops
        self.count = 0
        self.ids: list[str] = []
        self.encoded: list[bytes] = []
        self._capacity = 0
        self._columns: dict[str, npt.NDArray[Any]] = {
            **{name: np.zeros(0) for name in self._FLOATS},
            **{name: np.zeros(0, dtype=np.int64) for name in self._INTS},
            **{name: np.zeros(0, dtype=bool) for name in self._BOOLS},
            "version": np.zeros((0, 2), dtype=np.int64),  # commits behind the state held, -1: none
            "fetching": np.zeros((0, 2), dtype=np.int64),  # version under way, -1: none
            "left": np.zeros((0, 2)),  # bytes of it still to come
            "since": np.zeros((0, 2)),  # when its download begins
            "sent": np.zeros((0, len(PURPOSES))),
            "received": np.zeros((0, len(PURPOSES))),
        }
        self.version: Ints
        self.fetching: Ints
        self.left: Floats
        self.since: Floats
        self.sent: Floats
        self.received: Floats

    def arrive(self, moments: Floats, *, warm: bool = False) -> Ints:
        """New volunteers at ``moments`` (seconds); their rows.

        ``warm`` ones have been there for some time: what is left of their sessions is the residual of a session that is
        met at a random moment, and long sessions are met more often.
        """
        rng, scenario, size = self._rng, self._scenario, len(moments)
        rows = np.arange(self.count, self.count + size)
        self._grow(size)
        sessions = scenario.sessions
        scale = 3600.0 * sessions.median_hours / math.log(2.0) ** (1.0 / sessions.shape)
        if warm:
            met = scale * rng.gamma(1.0 + 1.0 / sessions.shape, size=size) ** (1.0 / sessions.shape)
            stays = met * rng.random(size)
        else:
            stays = scale * rng.weibull(sessions.shape, size)
        if sessions.endless:
            stays = np.full(size, np.inf)
        self.joined[rows] = moments
        self.leaves[rows] = moments + np.maximum(stays, 1.0)
        self.goodbye[rows] = rng.random(size) < sessions.goodbye
        self.up[rows] = self._draw(scenario.network.up_mbit, size) * 1e6 / 8
        self.down[rows] = self._draw(scenario.network.down_mbit, size) * 1e6 / 8
        self.delay[rows] = self._draw(scenario.network.rtt_ms, size) / 2000
        flops = self._draw(scenario.compute.gflops, size) * 1e9
        self.flops[rows] = flops
        measured = scenario.compute.samples_per_second
        median = scenario.compute.gflops.median * 1e9
        self.speed[rows] = flops / self._sample_flops if measured is None else measured * flops / median
        behind = rng.random(size) < scenario.nat.share
        self.relayed[rows] = behind & (rng.random(size) < scenario.nat.relayed)
        self.hidden[rows] = behind & ~self.relayed[rows]
        relay = scenario.nat.relay_mbit * 1e6 / 8
        for line in (self.up, self.down):
            line[rows] = np.where(self.relayed[rows], np.minimum(line[rows], relay), line[rows])
        self.liar[rows] = rng.random(size) < scenario.liars.share
        self.warm[rows] = warm
        self.block[rows] = -1
        self.announced[rows] = self.ready[rows] = self.first_commit[rows] = math.inf
        self.version[rows] = self.fetching[rows] = -1
        self.place[rows] = rng.random(size)
        self.since[rows] = 0.0
        self._forget_records(rows)
        # Raw bytes of one draw: reproducible, and as different as real keys.
        keys = rng.bytes(32 * size)
        for start in range(0, 32 * size, 32):
            self.encoded.append(b"")
            self.ids.append("")
            self._name(int(rows[start // 32]), base58.b58encode(_PEER_ID_PREFIX + keys[start : start + 32]))
        return rows

    def _name(self, row: int, encoded: bytes) -> None:
        self.order[row] = int.from_bytes(encoded[8:16], "big") >> 1  # all begin with 12D3KooW
        self.encoded[row], self.ids[row] = encoded, encoded.decode()

    def describe(self, rows: Ints) -> None:
        """Give the first of ``rows`` what the scenario says of its volunteers."""
        for row, given in zip(rows.tolist(), self._scenario.volunteers, strict=False):
            if given.peer_id is not None:
                self._name(row, given.peer_id.encode())
            if given.up_mbit is not None:
                self.up[row] = given.up_mbit * 1e6 / 8
            if given.down_mbit is not None:
                self.down[row] = given.down_mbit * 1e6 / 8
            if given.rtt_ms is not None:
                self.delay[row] = given.rtt_ms / 2000
            if given.samples_per_second is not None:
                self.speed[row] = given.samples_per_second
                self.flops[row] = given.samples_per_second * self._sample_flops
            if given.hidden is not None:
                self.hidden[row], self.relayed[row] = given.hidden, False
            if given.leaves_minutes is not None:
                self.leaves[row] = self.joined[row] + 60.0 * given.leaves_minutes
            if given.goodbye is not None:
                self.goodbye[row] = given.goodbye
        self._forget_records(rows)

    def vanish(self, rows: Ints, now: float) -> None:
        """These leave at ``now`` without a goodbye."""
        self.leaves[rows] = np.minimum(self.leaves[rows], now)
        self.goodbye[rows] = False
        self._forget_records(rows)

    def alive(self, now: float) -> Bools:
        """Who is there, shape [count]."""
        return np.asarray((self.joined <= now) & (self.leaves > now))

    def on_record(self, now: float) -> Bools:
        """Whom the directory names, who has left unnoticed included."""
        return np.asarray((self.announced <= now) & (self.record_until > now))

    def training(self, now: float) -> Bools:
        """Who takes part in rounds."""
        return np.asarray((self.stage == TRAINING) & (self.ready <= now) & (self.leaves > now))

    def send(self, purpose: str, senders: Ints, amounts: Floats | float) -> None:
        """Count bytes that rows (each once) have sent."""
        self.sent[senders, PURPOSES.index(purpose)] += amounts

    def receive(self, purpose: str, receivers: Ints, amounts: Floats | float) -> None:
        """Count bytes that rows (each once) have received."""
        self.received[receivers, PURPOSES.index(purpose)] += amounts

    def _forget_records(self, rows: Ints) -> None:
        # The last renewal was up to a third of a record's life before.
        rest = RECORD_SECONDS * (1.0 - self._rng.random(len(rows)) / 3.0)
        self.record_until[rows] = self.leaves[rows] + np.where(self.goodbye[rows], 0.0, rest)

    def _draw(self, quantity: LogNormal, size: int) -> Floats:
        return quantity.median * np.exp(quantity.spread * self._rng.standard_normal(size))

    def _grow(self, size: int) -> None:
        needed = self.count + size
        if needed > self._capacity:
            self._capacity = max(needed, self._capacity + self._capacity // 4, 64)
            for name, column in self._columns.items():
                larger = np.zeros((self._capacity, *column.shape[1:]), dtype=column.dtype)
                larger[: self.count] = column[: self.count]
                self._columns[name] = larger
        self.count = needed
        for name, column in self._columns.items():
            setattr(self, name, column[:needed])
