"""A peer's Ed25519 identity and the file that keeps it.

The file is a libp2p ``PrivateKey`` protobuf as p2pd reads it with ``-id``: ``08 01`` (type Ed25519) ``12 40`` (64 bytes
follow), the 32-byte seed, the 32-byte public key. It is created with mode 0600 and never overwritten: whoever loses it
loses their name in the swarm.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from blockswarm.dht.errors import IdentityError
from blockswarm.dht.peer_id import peer_id_from_public_key, public_key_from_peer_id
from blockswarm.files import write_atomically

_HEADER = bytes.fromhex("08011240")
_KEY_TYPES = {0: "RSA", 2: "Secp256k1", 3: "ECDSA"}
FILE_BYTES = len(_HEADER) + 64
SIGNATURE_BYTES = 64


class Identity:
    """One Ed25519 key pair; its public half is the peer id.

    Use `create`, `load`, `load_or_create` or `ephemeral`.

    Attributes
    ----------
    peer_id : str
        Base58 text ``12D3KooW…``.
    public_key : bytes
        32 raw bytes.
    path : Path or None
        The file it came from, None for an ephemeral one.
    """

    def __init__(self, seed: bytes, path: Path | None = None) -> None:
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()
        self.peer_id = peer_id_from_public_key(self.public_key)
        self.path = path

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def ephemeral(cls) -> Identity:
        """A new identity that exists only in memory."""
        return cls(os.urandom(32))

    @classmethod
    def create(cls, path: str | Path) -> Identity:
        """A new identity, saved to ``path`` with mode 0600.

        Raises
        ------
        IdentityError
            If the file exists already, its folder does not, or the disk refuses.
        """
        path = Path(path)
        identity = cls(os.urandom(32), path)
        try:
            write_atomically(path, identity.to_bytes(), mode=0o600, overwrite=False)
        except FileExistsError:
            raise IdentityError(f"identity file {path} exists already; it is never overwritten") from None
        except FileNotFoundError:
            raise IdentityError(f"identity file {path}: its folder does not exist; create it first") from None
        except OSError as error:
            raise IdentityError(f"identity file {path} cannot be written: {error.strerror}") from None
        return identity

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The identity kept in ``path``.

        Raises
        ------
        IdentityError
            If the file is missing, readable by others, truncated, or holds another kind of key.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                info = os.fstat(file.fileno())
                data = file.read(4 * 4096)
        except FileNotFoundError:
            raise IdentityError(f"identity file {path} does not exist") from None
        except OSError as error:
            raise IdentityError(f"identity file {path} cannot be read: {error.strerror}") from None
        if info.st_mode & 0o077:
            mode = f"{stat.S_IMODE(info.st_mode):04o}"
            raise IdentityError(f"identity file {path} is open to others (mode {mode}); run: chmod 600 {path}")
        return cls(_seed_of(data, path), path)

    @classmethod
    def load_or_create(cls, path: str | Path) -> Identity:
        """`load` if ``path`` exists, else `create` (also when two processes start at once)."""
        if not os.path.lexists(path):
            try:
                return cls.create(path)
            except IdentityError:
                if not os.path.lexists(path):
                    raise
        return cls.load(path)

    def to_bytes(self) -> bytes:
        """The file's 68 bytes. They contain the secret."""
        return _HEADER + self._seed + self.public_key

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature (64 bytes) over ``message``."""
        return self._key.sign(message)

    def lock(self) -> IdentityLock:
        """Hold this identity for one running peer of this machine, until `IdentityLock.release` or the process ends.

        Raises
        ------
        IdentityError
            If another process (or another peer of this one) holds it.
        """
        return IdentityLock(self)


class IdentityLock:
    """An advisory lock on the identity file; nothing to lock for an ephemeral identity."""

    def __init__(self, identity: Identity) -> None:
        self._handle: int | None = None
        if identity.path is None:
            return
        try:
            handle = os.open(identity.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise IdentityError(f"identity file {identity.path} cannot be read: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise IdentityError(
                f"identity {identity.peer_id} is already running on this machine ({identity.path} is in use); "
                "stop that peer or use another identity file"
            ) from None
        except OSError:
            # A file system without locks: the check over the network remains.
            os.close(handle)
            return
        self._handle = handle

    def release(self) -> None:
        """Let go; may be called twice."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None


def verify(peer_id: str, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` over ``message`` was made by the key of ``peer_id``; False for any malformed input."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_from_peer_id(peer_id)).verify(signature, message)
    except (IdentityError, InvalidSignature, ValueError, TypeError):
        return False
    return True


def _seed_of(data: bytes, path: Path) -> bytes:
    if len(data) >= 2 and data[0] == 0x08 and data[1] in _KEY_TYPES:
        raise IdentityError(
            f"identity file {path} holds an {_KEY_TYPES[data[1]]} key; blockswarm needs Ed25519: "
            "use another file name and let it be created"
        )
    # A truncated file may end inside the header: compare what is there.
    if data[: len(_HEADER)] != _HEADER[: len(data)]:
        raise IdentityError(f"identity file {path} is not a libp2p private key")
    if len(data) != FILE_BYTES:
        raise IdentityError(f"identity file {path} is damaged: {len(data)} bytes instead of {FILE_BYTES}")
    seed, public_key = data[len(_HEADER) : len(_HEADER) + 32], data[len(_HEADER) + 32 :]
    if Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() != public_key:
        raise IdentityError(f"identity file {path} is damaged: its public and private halves do not belong together")
    return seed
