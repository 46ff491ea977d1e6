"""What a round's book waits for, and what it has no place for."""

from __future__ import annotations

import numpy as np
import pytest

from blockswarm.dht.identity import Identity
from blockswarm.peer.book import EntryRefused, RoundBook
from blockswarm.peer.roll import Presence
from blockswarm.swarm.statements import Decision, MemberList

RUN = b"r" * 32
PEERS = [Identity.ephemeral() for _ in range(4)]
NAMES = [identity.peer_id for identity in PEERS]
PARENT = b"p" * 32


def listed_book(values: int) -> RoundBook:
    """The first member's book of a round of four in two groups, with both decisions."""
    members = MemberList.make(
        PEERS[0],
        RUN,
        subject=0,
        round_number=1,
        parent=PARENT,
        samples=dict.fromkeys(NAMES, 10),
        reachable=dict.fromkeys(NAMES, True),
    )
    book = RoundBook(subject=0, round=1, own_id=NAMES[0], values=values, group_size=2)
    book.note_presence(NAMES[0], Presence(PARENT, 10, True))
    book.accept_list(members)
    for group in range(2):
        parts = {position: 1.0 for position in book.seats.groups[group] if book.seats.parts_of(position)}
        weights = {NAMES[position]: 10.0 for position in book.seats.groups[group]}
        fields = {"group": members.group, "weights": weights, "rejected": {}, "clips": {}}
        for sender in weights:
            book.shares.pop(sender, None)
            book.add_share(sender, np.zeros(64, np.float32), 1.0)
        book.accept_decision(Decision.make(PEERS[group], RUN, parts=parts, **fields))
    return book


async def test_nobody_waits_for_the_part_of_a_member_that_reduces_others_parts_but_has_none_of_its_own():
    """Three blocks of values for four members: the third reduces a part of its neighbour's for its group."""
    book = listed_book(3 * 64)
    empty = [part for part, (begin, end) in enumerate(book.bounds) if begin == end]
    assert empty == [2] and book.seats.parts_of(2) == [3]
    for part in (0, 1, 3):
        assert not book.all_results_in
        book.add_result(part, b"mean", b"h" * 32, {0: b"", 1: b""})
    assert book.all_results_in


async def test_an_averaged_part_without_values_is_refused_for_an_outcome_with_it_would_be():
    book = listed_book(3 * 64)
    decision = book.decisions[0].statement.hash
    with pytest.raises(EntryRefused, match="nobody reduces this part"):
        book.check_result(NAMES[2], 2, book.require_members().group, {0: decision})
    book.check_result(NAMES[2], 3, book.require_members().group, {0: decision})
