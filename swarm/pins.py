"""Choosing the states a session is pinned to, from what the live holders say they can serve. Pure functions.

Holders of a block commit a round within the same second but not in the same instant, and keep the last three
certified states. A session names one state of each block and one embedding and keeps to them, so the text does not
depend on which holder answers. Chosen is what most holders have, because that leaves the most spares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from blockswarm.swarm.messages import StateName


@dataclass(frozen=True)
class Offer:
    """What one holder can serve: states of its block and of the embedding, newest first."""

    peer_id: str
    block: int
    states: tuple[StateName, ...]
    embedding: tuple[StateName, ...]

    def has(self, digest: bytes, embedding: bytes) -> bool:
        """Whether a session pinned to these two can be served."""
        return any(state.digest == digest for state in self.states) and any(
            state.digest == embedding for state in self.embedding
        )


@dataclass(frozen=True)
class Pin:
    """The states of a session; blocks that nobody holds are absent from ``blocks``."""

    embedding: StateName
    blocks: Mapping[int, StateName] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Digests in hex and rounds, for reports and for pinning a later session to the same states."""
        return {
            "embedding": {"round": self.embedding.round, "digest": self.embedding.digest.hex()},
            "blocks": {
                str(block): {"round": state.round, "digest": state.digest.hex()}
                for block, state in sorted(self.blocks.items())
            },
        }


def choose_embedding(offers: Iterable[Offer]) -> StateName | None:
    """The embedding with which most blocks can be served; then the one most holders have; then the newest."""
    blocks: dict[StateName, set[int]] = {}
    count: Counter[StateName] = Counter()
    for offer in offers:
        if offer.states:
            for name in set(offer.embedding):
                blocks.setdefault(name, set()).add(offer.block)
                count[name] += 1
    if not count:
        return None
    return max(count, key=lambda name: (len(blocks[name]), count[name], name.round, name.digest))


def choose_state(offers: Iterable[Offer], block: int, embedding: StateName) -> StateName | None:
    """The state of ``block`` most holders have together with ``embedding``; among those the newest."""
    count: Counter[StateName] = Counter()
    for offer in offers:
        if offer.block == block and any(name.digest == embedding.digest for name in offer.embedding):
            count.update(set(offer.states))
    return max(count, key=lambda name: (count[name], name.round, name.digest)) if count else None


def choose_pin(offers: Iterable[Offer], blocks: int) -> Pin | None:
    """States for all ``blocks`` blocks that have a holder; None when there is no offer at all.

    Parameters
    ----------
    offers : iterable of Offer
        One per live holder.
    blocks : int
        Number of blocks of the model.
    """
    offers = list(offers)
    embedding = choose_embedding(offers)
    if embedding is None:
        return None
    chosen = {block: choose_state(offers, block, embedding) for block in range(blocks)}
    return Pin(embedding, {block: state for block, state in chosen.items() if state is not None})


def exchange(pin: Pin, offers: Iterable[Offer], block: int, blocks: int) -> Pin | None:
    """``pin`` with another state of ``block``, whose pinned one nobody has any more.

    As little as possible changes: the embedding stays while it can, and so do the states of the other blocks.

    Parameters
    ----------
    pin : Pin
        The states so far.
    offers : iterable of Offer
        One per live holder.
    block, blocks : int
        The block at issue, and how many the model has.

    Returns
    -------
    Pin or None
        None when nobody serves ``block``.
    """
    offers = list(offers)
    state = choose_state(offers, block, pin.embedding)
    if state is not None:
        return Pin(pin.embedding, {**pin.blocks, block: state})
    # Another embedding, then: it must suit this block, and as many of the others as can be.
    suits = {name for offer in offers if offer.block == block and offer.states for name in offer.embedding}
    embedding = choose_embedding(
        replace(offer, embedding=tuple(name for name in offer.embedding if name in suits)) for offer in offers
    )
    if embedding is None:
        return None
    chosen: dict[int, StateName] = {}
    for number in range(blocks):
        old = pin.blocks.get(number)
        if old is not None and any(o.block == number and o.has(old.digest, embedding.digest) for o in offers):
            chosen[number] = old
        elif (state := choose_state(offers, number, embedding)) is not None:
            chosen[number] = state
    return Pin(embedding, chosen)
