"""The identity file: made once, private, never overwritten, and refused with a reason when it is not right."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from blockswarm.dht.errors import IdentityError
from blockswarm.dht.identity import Identity, verify


@pytest.fixture
def path(tmp_path):
    return tmp_path / "identity.key"


def test_a_new_file_is_private_and_brings_the_same_peer_back(path):
    made = Identity.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == 68
    assert Identity.load(path).peer_id == made.peer_id
    assert Identity.load_or_create(path).peer_id == made.peer_id


def test_the_umask_does_not_widen_or_break_the_mode(path):
    former = os.umask(0)
    try:
        Identity.create(path)
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_never_overwritten(path):
    path.write_bytes(b"precious")
    with pytest.raises(IdentityError, match="exists already"):
        Identity.create(path)
    assert path.read_bytes() == b"precious"
    assert list(path.parent.iterdir()) == [path]


def test_load_or_create_refuses_a_bad_file_instead_of_replacing_it(path):
    path.write_bytes(b"precious")
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="not a libp2p private key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == b"precious"


def test_a_dangling_link_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(IdentityError, match="does not exist"):
        Identity.load_or_create(path)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o777])
def test_a_file_others_can_read_is_refused_with_the_cure(path, mode):
    Identity.create(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=rf"open to others \(mode {mode:04o}\); run: chmod 600 .*identity.key"):
        Identity.load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_private_modes_are_fine(path, mode):
    Identity.create(path)
    path.chmod(mode)
    Identity.load(path)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 36, 67, 69])
def test_a_file_of_the_wrong_length_is_damaged(path, length):
    whole = Identity.ephemeral().to_bytes() + b"x"
    path.write_bytes(whole[:length])
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=f"is damaged: {length} bytes instead of 68"):
        Identity.load(path)


def test_halves_that_do_not_belong_together_are_noticed(path):
    one, two = Identity.ephemeral().to_bytes(), Identity.ephemeral().to_bytes()
    path.write_bytes(one[:36] + two[36:])
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="do not belong together"):
        Identity.load(path)


def test_a_foreign_rsa_identity_is_named_as_such(path):
    # What hivemind writes: an RSA key in the same protobuf.
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    length = len(key)
    path.write_bytes(b"\x08\x00\x12" + bytes([length & 0x7F | 0x80, length >> 7]) + key)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="holds an RSA key; blockswarm needs Ed25519"):
        Identity.load(path)


def test_a_pem_file_is_not_a_key_of_ours(path):
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="not a libp2p private key"):
        Identity.load(path)


def test_missing_file_and_missing_folder(tmp_path):
    with pytest.raises(IdentityError, match="does not exist"):
        Identity.load(tmp_path / "identity.key")
    with pytest.raises(IdentityError, match="its folder does not exist"):
        Identity.create(tmp_path / "no" / "identity.key")
    with pytest.raises(IdentityError, match="its folder does not exist"):
        Identity.load_or_create(tmp_path / "no" / "identity.key")


def test_a_folder_in_place_of_the_file(tmp_path):
    with pytest.raises(IdentityError, match="cannot be read: Is a directory"):
        Identity.load(tmp_path)


def test_messages_do_not_contain_the_secret(path):
    identity = Identity.create(path)
    assert repr(identity) == f"Identity({identity.peer_id})"


def test_signatures_hold_for_their_maker_and_message_only():
    alice, bob = Identity.ephemeral(), Identity.ephemeral()
    signature = alice.sign(b"hello")
    assert len(signature) == 64
    assert verify(alice.peer_id, b"hello", signature)
    assert not verify(alice.peer_id, b"hellO", signature)
    assert not verify(bob.peer_id, b"hello", signature)
    assert not verify(alice.peer_id, b"hello", signature[:-1])
    assert not verify("nobody", b"hello", signature)


def test_an_identity_runs_once_on_a_machine(path):
    Identity.create(path)
    lock = Identity.load(path).lock()
    with pytest.raises(IdentityError, match="already running on this machine"):
        Identity.load(path).lock()
    lock.release()
    Identity.load(path).lock().release()


def test_the_lock_goes_with_its_process(path):
    Identity.create(path)
    code = (
        "import os, sys; from blockswarm.dht.identity import Identity; "
        "lock = Identity.load(sys.argv[1]).lock(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    Identity.load(path).lock().release()
