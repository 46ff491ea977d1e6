"""Cached peers and the address book: bounded, forgiving, and never believing a stranger about a third."""

from __future__ import annotations

import json

import pytest

from blockswarm.dht.address_book import MAX_PEERS, AddressBook
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import MAX_PEERS as MAX_KNOWN
from blockswarm.dht.known_peers import KnownPeers
from tests.dht.world import NOBODY

OWN = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def addr(peer_id, port=4001):
    return f"/ip4/192.0.2.1/tcp/{port}/p2p/{peer_id}"


def some_peers(count):
    return [Identity(number.to_bytes(32, "big")).peer_id for number in range(count)]


def test_peers_met_earlier_are_there_after_a_restart_the_latest_first(tmp_path):
    one, two = some_peers(2)
    known = KnownPeers(tmp_path / "known_peers.json")
    known.remember([addr(one), addr(one, 4002)])
    known.remember([addr(two)])
    known.save()
    assert KnownPeers(tmp_path / "known_peers.json").addrs() == [addr(two), addr(one), addr(one, 4002)]


def test_only_usable_direct_addresses_of_one_peer_are_kept(tmp_path):
    known = KnownPeers(tmp_path / "known_peers.json")
    known.remember(["nonsense", addr(NOBODY), addr(OWN), f"{addr(OWN)}/p2p-circuit/p2p/{NOBODY}"])
    known.remember([])
    assert known.addrs() == [addr(NOBODY)]


def test_the_file_does_not_grow_without_bound(tmp_path):
    known = KnownPeers(tmp_path / "known_peers.json")
    peers = some_peers(MAX_KNOWN + 10)
    for peer_id in peers:
        known.remember([addr(peer_id, port) for port in range(1, 9)])
    assert len(known.addrs()) == 4 * MAX_KNOWN
    assert known.addrs()[0] == addr(peers[-1], 1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"peers": 7}', '{"peers": [["x", 7], "y", []]}', "[" * 100_000])
def test_a_damaged_file_only_means_a_fresh_start(tmp_path, content):
    path = tmp_path / "known_peers.json"
    path.write_text(content)
    known = KnownPeers(path)
    assert known.addrs() == []
    known.remember([addr(NOBODY)])
    known.save()
    assert json.loads(path.read_text()) == {"peers": [[addr(NOBODY)]]}


def test_a_disk_that_refuses_is_no_reason_to_stop(tmp_path, caplog):
    known = KnownPeers(tmp_path / "no" / "known_peers.json")
    known.remember([addr(NOBODY)])
    known.save()
    assert "known peers not saved" in caplog.text


def test_nothing_is_written_when_nothing_changed(tmp_path):
    path = tmp_path / "known_peers.json"
    known = KnownPeers(path)
    known.save()
    assert not path.exists()


def test_the_book_takes_addresses_that_name_their_peer_only():
    book = AddressBook(OWN)
    book.learn(NOBODY, [addr(OWN), "/ip4/192.0.2.1/tcp/1", "rubbish", addr(NOBODY, 0), addr(NOBODY), addr(NOBODY)])
    assert book.addrs(NOBODY) == (addr(NOBODY),)
    book.learn(NOBODY, ["rubbish"])
    assert book.addrs(NOBODY) == (addr(NOBODY),)
    book.learn(OWN, [addr(OWN)])
    book.learn("not a peer", [addr(NOBODY)])
    assert len(book) == 1


def test_the_book_forgets_whom_it_heard_of_longest_ago():
    book = AddressBook(OWN)
    peers = some_peers(MAX_PEERS + 1)
    for peer_id in peers[:-1]:
        book.learn(peer_id, [addr(peer_id)])
    book.learn(peers[0], [addr(peers[0])])
    book.learn(peers[-1], [addr(peers[-1])])
    assert len(book) == MAX_PEERS
    assert book.addrs(peers[0]) and not book.addrs(peers[1])


def test_after_each_failed_dial_the_pause_grows_until_new_addresses_come():
    book = AddressBook(OWN)
    book.learn(NOBODY, [addr(NOBODY)])
    assert book.due((), 0.0) == [NOBODY]
    assert book.due({NOBODY}, 0.0) == []
    book.failed(NOBODY, 0.0)
    assert book.due((), 9.9) == [] and book.due((), 10.0) == [NOBODY]
    book.failed(NOBODY, 10.0)
    assert book.due((), 29.9) == [] and book.due((), 30.0) == [NOBODY]
    for _ in range(50):
        book.failed(NOBODY, 30.0)
    assert book.due((), 629.9) == [] and book.due((), 630.0) == [NOBODY]
    book.learn(NOBODY, [addr(NOBODY)])
    assert book.due((), 31.0) == []
    book.learn(NOBODY, [addr(NOBODY, 4002)])
    assert book.due((), 31.0) == [NOBODY]
    book.failed(NOBODY, 31.0)
    book.succeeded(NOBODY)
    assert book.due((), 31.0) == [NOBODY]
