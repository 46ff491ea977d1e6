"""How commands that ask a swarm reach it, and how long they take for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockswarm.cli.asking import CONNECT_SECONDS, MET_PEERS, connected
from blockswarm.dht.errors import PeersFileError
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.swarm import SwarmClient
from blockswarm.swarm.deadline import Deadline

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `SwarmClient.connect` was called with, instead of dialling anybody."""
    calls: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def connect(peers: Any, **options: Any) -> Iterator[str]:
        calls.append({"peers": peers, **options})
        yield "client"

    monkeypatch.setattr(SwarmClient, "connect", connect)
    return calls


@pytest.mark.parametrize(("seconds", "allowed"), [(5.0, 5.0), (300.0, CONNECT_SECONDS), (None, CONNECT_SECONDS)])
def test_connecting_takes_no_longer_than_its_own_bound_or_what_is_left(
    seconds: float | None, allowed: float, connections: list[dict[str, Any]]
) -> None:
    deadline = None if seconds is None else Deadline(seconds, lambda: 100.0)
    with connected(None, (ADDRESS,), None, deadline):
        pass
    assert connections[0]["timeout"] == allowed


def test_a_peers_file_without_a_peer_is_refused_before_anything_is_imported(
    connections: list[dict[str, Any]],
) -> None:
    Path("bootstrap_peers.txt").write_text("# nobody yet\n")
    with pytest.raises(PeersFileError, match=r"bootstrap_peers\.txt names no peer yet"), connected(None, (), None):
        pass
    assert connections == []


def test_peers_met_earlier_make_up_for_an_empty_file(connections: list[dict[str, Any]]) -> None:
    Path("bootstrap_peers.txt").write_text("# nobody any more\n")
    MET_PEERS.parent.mkdir()
    met = KnownPeers(MET_PEERS)
    met.remember([ADDRESS])
    met.save()
    with connected(None, (), None) as client:
        assert client == "client"
    assert connections[0]["cache"] == MET_PEERS
