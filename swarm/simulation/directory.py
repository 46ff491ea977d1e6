"""The directory of a simulated swarm: what lookups cost, what they find, and where they break.

A lookup is sampled, not walked: how many requests it makes and how long it takes was measured on hivemind's own search
(``benchmarks/lookups.py``). What it finds depends on the nodes that hold the key: everybody asks the same five.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.policy.asking import KEY_NODES, RECORD_BYTES, look_seconds
from blockswarm.swarm.simulation.peers import RECORD_SECONDS

Floats = npt.NDArray[np.float64]

BEAM = 20
"""Nodes that a search asks at least (``dht/kademlia.py``: BUCKET_SIZE); up to 1000 nodes it asks just these."""

MORE_PER_DECADE = 3.6
"""Requests that ten times as many nodes add beyond 1000. Measured: 21.5 at 3,000, 23.7 at 10,000."""

ROUND_TRIPS = 6.4
"""Median duration of a search in round trips. Measured: 6.3 to 6.9 from 30 to 3,000 nodes, 7.5 at 10,000."""

WORKERS = 4
"""Requests under way at once (hivemind's default)."""

TIMEOUT = 1.0
"""Seconds that a node which is gone, or too busy, holds up one of the workers (``dht/kademlia.py``: RPC_SECONDS)."""

STALE_SECONDS = 60.0
"""Time until tables have dropped a node that left: one upkeep of connections (``dht/keeper.py``: UPKEEP_SECONDS)."""

REQUEST_BYTES = 350
"""Of a find request with its transport. Estimated from its fields: key, own id, addresses, stream headers."""

REPLY_BYTES = 1800
"""Of its reply without a value: twenty nodes of about 80 bytes. Estimated from its fields."""

KEY_RECORDS = 512
"""Records that a node keeps under one key (``dht/kademlia.py``: MAX_SUBKEYS)."""

VIEW_RECORDS = 1024
"""Records of a block that a peer keeps (``peer/view.py``: MOST_RECORDS)."""

UPLINK_SHARE = 0.5
"""Share of a node's uplink that answers of the directory can take before they time out. Assumed."""


@dataclass(frozen=True)
class DirectoryState:
    """The directory in one round. Arrays have shape [blocks]."""

    requests: float
    """Of one lookup."""
    seconds: float
    """Median duration of one lookup."""
    known: Floats
    """Share of a block's replicas that another of them knows from it."""
    known_elsewhere: float
    """Share of everybody that a volunteer of another block knows."""
    listed: Floats
    """Share of a block's replicas that find room in it."""
    answered: Floats
    """Share of requests for a block's records that its holders answer in time."""
    hottest: float
    """Requests in a second that a holder of the most wanted key gets."""
    messages: float
    """Sent and answered by a volunteer in a second, without those to holders of wanted keys."""
    sent: float
    """Bytes in a second, by a volunteer, on average; as much is received."""


def lookup_requests(nodes: float) -> float:
    """Requests of one search among ``nodes``."""
    more = MORE_PER_DECADE * np.log10(max(nodes, 1000.0) / 1000.0)
    return float(min(max(nodes - 1.0, 0.0), BEAM + more))


def lookup_seconds(
    rng: np.random.Generator, size: int, *, requests: float, rtt: float, stale: float, unanswered: float = 0.0
) -> Floats:
    """Durations of lookups, seconds, shape [size].

    Parameters
    ----------
    rng : numpy Generator
        Where they are drawn from.
    size : int
        How many.
    requests, rtt : float
        Of one search, and seconds of a median round trip.
    stale : float
        Share of the nodes in routing tables that are gone.
    unanswered : float
        Share of a key's holders that are too busy to answer in time.
    """
    timeouts = rng.binomial(round(requests), stale, size) + rng.binomial(KEY_NODES, unanswered, size)
    # Each worker that meets a dead node is held up; the others go on, so only what exceeds their shares adds up.
    held_up = np.where(timeouts > 0, np.maximum(TIMEOUT, timeouts * TIMEOUT / WORKERS) + 3.0 * rtt, 0.0)
    usual = ROUND_TRIPS * rtt * np.exp(0.13 * rng.standard_normal(size))
    return np.asarray(np.maximum(usual, held_up))


def directory_state(
    *,
    replicas: npt.NDArray[np.int64],
    nodes: int,
    departures: float,
    up: float,
    rtt: float,
    shards: int,
    round_seconds: float,
    often: bool = False,
) -> DirectoryState:
    """The directory as ``nodes`` volunteers load it.

    Parameters
    ----------
    replicas : ndarray, shape [blocks]
        Records that each block would have.
    nodes : int
        Everyone there.
    departures : float
        Volunteers that leave in a second.
    up, rtt : float
        Bytes/s and seconds of the median volunteer.
    shards, round_seconds
        From the manifest.
    often : bool
        Every block is read as often as in a small swarm, as an earlier version did.
    """
    blocks = len(replicas)
    stored = np.minimum(replicas, KEY_RECORDS * shards)
    kept = np.minimum(stored, VIEW_RECORDS)
    own_pause, others_pause = (
        np.array([look_seconds(round_seconds=round_seconds, records=0 if often else n, own=own) for n in found])
        for own, found in ((True, kept), (False, kept.sum() - kept))
    )
    requests = lookup_requests(nodes)
    stale = min(0.9, departures * STALE_SECONDS / max(nodes, 1))
    seconds = ROUND_TRIPS * rtt + stale * requests * TIMEOUT / WORKERS
    # A look at a block is one search for each of its keys, all at once; the next begins after a pause. Who works at a
    # block reads it at its own pace, and all others at the other.
    share = replicas / max(int(replicas.sum()), 1)
    own, others = nodes * share / (own_pause + seconds), nodes * share / (others_pause + seconds)
    looks = own + others.sum() - others
    value = stored / shards * RECORD_BYTES
    wanted = looks * (REPLY_BYTES + value)  # bytes/s asked of each holder of a key
    answered = np.minimum(1.0, UPLINK_SHARE * up / np.maximum(wanted, 1.0))
    found = 1.0 - (1.0 - answered) ** min(KEY_NODES, max(nodes - 1, 0))
    tries, tries_others = (
        np.maximum(1.0, RECORD_SECONDS * 2 / 3 / (pause + seconds)) for pause in (own_pause, others_pause)
    )
    listed = np.divide(stored, replicas, out=np.ones(blocks), where=replicas > 0)
    known = np.minimum(listed, np.divide(VIEW_RECORDS, replicas, out=np.ones(blocks), where=replicas > 0))
    seen_by_others = float(np.mean(known * (1.0 - (1.0 - found) ** tries_others)))
    known = known * (1.0 - (1.0 - found) ** tries)
    each_second = shards * float(looks.sum()) / max(nodes, 1)
    stores = 3.0 / RECORD_SECONDS + 3.0 / round_seconds  # renewals; after each round state, and both progress reports
    searches = each_second + stores
    replies = requests * REPLY_BYTES + KEY_NODES * float(np.average(value * answered, weights=looks + 1e-12))
    sent = requests * REQUEST_BYTES * searches + replies * each_second + requests * REPLY_BYTES * stores
    return DirectoryState(
        requests=requests,
        seconds=seconds,
        known=known,
        known_elsewhere=seen_by_others,
        listed=listed,
        answered=answered,
        hottest=float(looks.max()) + float(nodes) / blocks / shards * stores,
        messages=2.0 * (requests * searches + KEY_NODES * stores),
        sent=sent + stores * KEY_NODES * (RECORD_BYTES + REQUEST_BYTES),
    )
