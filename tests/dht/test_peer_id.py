"""Peer ids: the public key in base58, in one form only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockswarm.dht.errors import IdentityError
from blockswarm.dht.peer_id import is_peer_id, peer_id_bytes, peer_id_from_public_key, public_key_from_peer_id


def test_a_known_key_has_the_known_peer_id():
    # Test vector of the libp2p peer-id specification: an Ed25519 public key as protobuf.
    protobuf = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    peer_id = peer_id_from_public_key(protobuf[4:])
    assert peer_id_bytes(peer_id) == b"\x00\x24" + protobuf
    assert peer_id.startswith("12D3KooW") and len(peer_id) == 52


@given(st.binary(min_size=32, max_size=32))
def test_the_key_comes_back_out_of_the_id(key):
    assert public_key_from_peer_id(peer_id_from_public_key(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12D3KooW",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        "1" * 60,
        "12D3KooW" + "z" * 5000,
        "12D3KooWGRUZNiRz5ZbmKM6qPUbCBM46jCf7Jyd3RTcDpwmWqBT0",
        " 12D3KooWGRUZNiRz5ZbmKM6qPUbCBM46jCf7Jyd3RTcDpwmWqBTX",
        "12D3KooWGRUZNiRz5ZbmKM6qPUbCBM46jCf7Jyd3RTcDpwmWqBTX\n",
        "é",
        None,
        7,
    ],
)
def test_anything_else_is_no_peer_id(text):
    assert not is_peer_id(text)
    with pytest.raises(IdentityError):
        public_key_from_peer_id(text)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(IdentityError, match="32 bytes, not 31"):
        peer_id_from_public_key(b"x" * 31)
