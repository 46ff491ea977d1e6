"""Peer ids of Ed25519 keys: base58 text ``12D3KooW…`` that contains the public key itself.

libp2p writes a short public key into the id in full ("identity" multihash), so whoever knows a peer id can check that
peer's signatures with no further lookup. Ids of other key types are hashes and are refused here.
Layout: ``00`` (identity) ``24`` (36 bytes) ``08 01`` (protobuf: type Ed25519) ``12 20`` (32 bytes follow) + key.
"""

from __future__ import annotations

import functools

import base58

from blockswarm.dht.errors import IdentityError

_PREFIX = bytes.fromhex("002408011220")
KEY_BYTES = 32
MAX_TEXT = 60
"""Base58 of 38 bytes has 52 characters; anything much longer is refused before it is decoded."""


def peer_id_from_public_key(public_key: bytes) -> str:
    """Peer id of a raw 32-byte Ed25519 public key.

    Raises
    ------
    IdentityError
        If the key has another length.
    """
    if len(public_key) != KEY_BYTES:
        raise IdentityError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(public_key)}")
    return str(base58.b58encode(_PREFIX + public_key).decode())


@functools.lru_cache(maxsize=4096)
def public_key_from_peer_id(peer_id: str) -> bytes:
    """The raw 32-byte Ed25519 public key inside ``peer_id``.

    Raises
    ------
    IdentityError
        If the text is not the canonical base58 form of an Ed25519 peer id.
    """
    raw = b""
    if isinstance(peer_id, str) and 0 < len(peer_id) <= MAX_TEXT:
        try:
            raw = base58.b58decode(peer_id)
        except ValueError:
            raw = b""
    if len(raw) != len(_PREFIX) + KEY_BYTES or not raw.startswith(_PREFIX):
        raise IdentityError(f"{str(peer_id)[:MAX_TEXT]!r} is not the peer id of an Ed25519 key (12D3KooW…)")
    public_key = bytes(raw[len(_PREFIX) :])
    if peer_id_from_public_key(public_key) != peer_id:
        raise IdentityError(f"{peer_id!r} is not a peer id in its canonical form")
    return public_key


def is_peer_id(text: object) -> bool:
    """Whether ``text`` is the canonical peer id of an Ed25519 key."""
    if not isinstance(text, str):
        return False
    try:
        public_key_from_peer_id(text)
    except IdentityError:
        return False
    return True


def peer_id_bytes(peer_id: str) -> bytes:
    """The binary form (38 bytes) libp2p uses on the wire."""
    return _PREFIX + public_key_from_peer_id(peer_id)
