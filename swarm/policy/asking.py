"""Whom a peer asks for a state, and how often it reads the directory: so that a large swarm does not ask the same few.

Pure functions; running peers and the simulator call the same (docs/scaling.md has what they change).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

MAX_ASKED = 12
"""Holders asked for their heads; more would only tell the same."""

MOST_TOLD = 4
"""Of them those who are known to be ahead."""

LONGEST_LOOK = 5.0
"""Seconds between two looks of a small swarm at the directory; a quarter of a round where that is shorter."""

LONGEST_OWN, LONGEST_OTHERS = 15.0, 25.0
"""Longest seconds between two looks at a peer's own block, and at the others. Records live 45 s and are renewed every
15 s, so what is read lives for 30 s at least: nobody goes off the books between two looks."""

LOOK_BYTES_PER_SECOND = 20_000.0
"""What reading a block, and reading all others together, may each cost: 1.7 GB a day. A sixth of a line of 1 Mbit/s."""

RECORD_BYTES = 627
"""Of one record: a block's, sealed, with two addresses. Measured."""

KEY_NODES = 5
"""Nodes that hold a key, each of which sends what it has (``dht/kademlia.py``: num_replicas)."""


def donors_for(own_id: str, told: Iterable[str], holders: Iterable[str], *, turn: int) -> list[str]:
    """Holders of a state in the order in which ``own_id`` asks them.

    Everybody's order is another, and another in each ``turn``: so newcomers spread over all who hold a state, and one
    that met only holders who lag behind meets others when it tries again. Those known to be ahead are among the first
    `MAX_ASKED`, but not before the others: whoever told the whole swarm of a state would have to give it to all.

    Parameters
    ----------
    own_id : str
        Who asks; it is not in the result.
    told : iterable of str
        Peers known to be ahead, who have it for certain; the first `MOST_TOLD` in this peer's order are asked at once.
    holders : iterable of str
        Peers that should be able to give it.
    turn : int
        Number of the round in progress.

    Returns
    -------
    list of str
        Each once.
    """

    def rank(peer_id: str) -> bytes:
        return hashlib.blake2b(f"{own_id} {turn} {peer_id}".encode(), digest_size=8).digest()

    ahead = sorted({*told} - {own_id}, key=rank)
    first, rest = ahead[:MOST_TOLD], ahead[MOST_TOLD:]
    others = sorted({*holders, *rest} - {own_id, *first}, key=rank)
    room = MAX_ASKED - len(first)
    return sorted([*first, *others[:room]], key=rank) + others[room:]


def look_seconds(*, round_seconds: float, records: float, own: bool) -> float:
    """Seconds from one look at the directory to the next.

    A look brings every record, so it costs as much more as the swarm is larger; small swarms look as often as rounds
    want it. Whom a peer has not read about yet it hears of when that one calls.

    Parameters
    ----------
    round_seconds : float
        Of the manifest.
    records : float
        Found by the last look: under the peer's own block, or under all others together.
    own : bool
        Which of the two: with whom rounds are made is read more often than what only placement and the embedding need.
    """
    often = min(LONGEST_LOOK, round_seconds / 4)
    affordable = records * KEY_NODES * RECORD_BYTES / LOOK_BYTES_PER_SECOND
    return max(often, min(affordable, LONGEST_OWN if own else LONGEST_OTHERS))
