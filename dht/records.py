"""Signed, typed records of the directory: who holds which block, which runs exist, how a round ended.

A record is believed only if its owner signed it: the signer's peer id stands inside the payload, contains the public
key, and is the DHT subkey it is stored under. Envelope, at most 4 KiB::

    msgpack {"k": key text, "p": payload (msgpack map), "s": Ed25519 signature}
    signed bytes = b"blockswarm-record-1" 00 key 00 payload

Both msgpack layers have one canonical form, so a record cannot be altered and stay valid. Nothing here knows hivemind:
the light client checks the same bytes with the same code.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, ClassVar, TypeVar

from blockswarm.dht.addresses import parse
from blockswarm.dht.errors import AddressError, RecordError
from blockswarm.dht.frames import PROTOCOL_VERSION
from blockswarm.dht.identity import SIGNATURE_BYTES, Identity, verify
from blockswarm.dht.packing import PackingError, pack, unpack_map
from blockswarm.dht.peer_id import is_peer_id

MAX_RECORD = 4096
"""Bytes of a sealed record; 512 of them stay under half of the DHT's 4 MiB message limit."""
MAX_LIFETIME = 600.0
"""Seconds from now that a record may be valid: a ghost is gone after that at the latest."""
MAX_SKEW = 60.0
"""Seconds that ``issued`` may lie in the future."""
MAX_ADDRS = 8
MAX_SHARDS = 256
EMBEDDING = -1
"""Subject number of the shared embedding; blocks count from 0."""
MAX_BLOCKS = 4096

STATES = ("JOINING", "TRAINING", "CONTRIBUTING", "SERVING", "OFFLINE")
_DOMAIN = b"blockswarm-record-1\0"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}\Z")
_COUNT = (1 << 53) - 1


def block_key(run_id: str, block: int, shard: int = 0) -> str:
    """DHT key under which the holders of ``block`` are listed."""
    return f"{run_id}.block.{block}" if shard == 0 else f"{run_id}.block.{block}.{shard}"


def runs_key() -> str:
    """DHT key under which runs are listed."""
    return "blockswarm.runs"


def progress_key(run_id: str, subject: int) -> str:
    """DHT key of the round reports of ``subject`` (a block, or `EMBEDDING`)."""
    return f"{run_id}.progress.{subject}"


def is_run_id(value: object) -> bool:
    """Whether ``value`` may be a run id: 1 to 80 letters, digits, ``-`` and ``_``."""
    return isinstance(value, str) and _RUN_ID.match(value) is not None


class _Checked:
    """Field checks shared by the records; each raises `RecordError` naming field and limit."""

    KIND: ClassVar[str]

    def _fail(self, field: str, want: str) -> RecordError:
        return RecordError(f"{self.KIND} record: {field} must be {want}")

    def _text(self, field: str, most: int, *, empty: bool = False) -> None:
        value = getattr(self, field)
        if type(value) is not str or not (0 if empty else 1) <= len(value) <= most or not value.isprintable():
            raise self._fail(field, f"1 to {most} printable characters")

    def _int(self, field: str, low: int, high: int) -> None:
        value = getattr(self, field)
        if type(value) is not int or not low <= value <= high:
            raise self._fail(field, f"an integer from {low} to {high}")

    def _float(self, field: str, low: float, high: float, *, optional: bool = False) -> None:
        value = getattr(self, field)
        if value is None and optional:
            return
        if type(value) is int:
            value = float(value)
            object.__setattr__(self, field, value)
        # The comparison is false for NaN and for both infinities.
        if type(value) is not float or not low <= value <= high:
            raise self._fail(field, f"a finite number from {low:g} to {high:g}")

    def _bool(self, field: str) -> None:
        if type(getattr(self, field)) is not bool:
            raise self._fail(field, "true or false")

    def _digest(self, field: str, *, empty: bool = False) -> None:
        value = getattr(self, field)
        if type(value) is not bytes or len(value) not in ((0, 32) if empty else (32,)):
            raise self._fail(field, "a digest of 32 bytes")

    def _run(self) -> None:
        if not is_run_id(getattr(self, "run_id", None)):
            raise self._fail("run_id", "1 to 80 letters, digits, '-' and '_'")

    def _owner(self) -> None:
        if not is_peer_id(getattr(self, "peer_id", None)):
            raise self._fail("peer_id", "the peer id of an Ed25519 key")

    def _times(self) -> None:
        self._float("issued", 0.0, 1e12)
        self._float("expires", 0.0, 1e12)

    def _addresses(self) -> None:
        addrs = getattr(self, "addrs", None)
        if isinstance(addrs, (list, tuple)):
            addrs = tuple(addrs)
            object.__setattr__(self, "addrs", addrs)
        if type(addrs) is not tuple or len(addrs) > MAX_ADDRS or not all(type(addr) is str for addr in addrs):
            raise self._fail("addrs", f"a list of at most {MAX_ADDRS} addresses")
        for addr in addrs:
            try:
                address = parse(addr)
            except AddressError as error:
                raise RecordError(f"{self.KIND} record: {error}") from None
            if address.peer_id != getattr(self, "peer_id", None) or address.port == 0:
                raise self._fail("addrs", "addresses of its owner, ending in /p2p/PEER, with a port")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockRecord(_Checked):
    """A volunteer says: I am here for this block, in this state, with these weights."""

    KIND: ClassVar[str] = "block"

    run_id: str
    block: int
    peer_id: str
    """Owner; the record is signed by this identity."""
    state: str
    """One of `STATES`."""
    round: int = 0
    """Last round this peer has committed."""
    digest: bytes = b""
    """SHA-256 of the block state (32 bytes); empty while a newcomer has none."""
    embedding_digest: bytes = b""
    """SHA-256 of the embedding state (32 bytes); empty while a newcomer has none."""
    samples_per_second: float = 0.0
    serving_rps: float = 0.0
    """Requests per second this peer could answer lately."""
    addrs: tuple[str, ...] = ()
    """Full multiaddrs ending in ``/p2p/<peer_id>``."""
    relayed: bool = False
    """Reachable only through a relay."""
    software: str = ""
    protocol: int = PROTOCOL_VERSION
    issued: float = 0.0
    """Unix seconds."""
    expires: float = 0.0
    """Unix seconds; equals the expiration in the DHT."""

    def __post_init__(self) -> None:
        self._run()
        self._int("block", 0, MAX_BLOCKS - 1)
        self._owner()
        if self.state not in STATES:
            raise self._fail("state", f"one of {', '.join(STATES)}")
        self._int("round", 0, _COUNT)
        nothing_yet = self.state in ("JOINING", "OFFLINE")
        self._digest("digest", empty=nothing_yet)
        self._digest("embedding_digest", empty=nothing_yet)
        self._float("samples_per_second", 0.0, 1e12)
        self._float("serving_rps", 0.0, 1e12)
        self._addresses()
        self._bool("relayed")
        self._text("software", 64, empty=True)
        self._int("protocol", 1, 1 << 31)
        self._times()

    def key(self, shard: int = 0) -> str:
        """DHT key it belongs under."""
        return block_key(self.run_id, self.block, shard)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(_Checked):
    """A peer says: I can give you the manifest of this run."""

    KIND: ClassVar[str] = "run"

    run_id: str
    name: str
    digest: bytes
    """SHA-256 of the canonical manifest (32 bytes)."""
    peer_id: str
    addrs: tuple[str, ...] = ()
    issued: float = 0.0
    expires: float = 0.0

    def __post_init__(self) -> None:
        self._run()
        self._text("name", 80)
        self._digest("digest")
        self._owner()
        self._addresses()
        self._times()

    def key(self, shard: int = 0) -> str:
        """DHT key it belongs under."""
        return runs_key()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressRecord(_Checked):
    """A replica's report on its last decided round of one subject (a block, or the embedding)."""

    KIND: ClassVar[str] = "progress"

    run_id: str
    subject: int
    """Block number, or `EMBEDDING`."""
    peer_id: str
    round: int
    digest: bytes
    """Digest of the subject's state after the round (32 bytes)."""
    accepted: tuple[str, ...] = ()
    """Peer ids whose updates are in it."""
    samples: int = 0
    """Training samples behind the round."""
    certified: bool = False
    lone: bool = False
    """The only replica on record."""
    heldout_ce: float | None = None
    """Held-out cross-entropy in nats per byte, None when not measured."""
    issued: float = 0.0
    expires: float = 0.0

    def __post_init__(self) -> None:
        self._run()
        self._int("subject", EMBEDDING, MAX_BLOCKS - 1)
        self._owner()
        self._int("round", 0, _COUNT)
        self._digest("digest")
        accepted: object = self.accepted
        if isinstance(accepted, list):
            accepted = tuple(accepted)
            object.__setattr__(self, "accepted", accepted)
        if not isinstance(accepted, tuple) or len(accepted) > 64 or not all(map(is_peer_id, accepted)):
            raise self._fail("accepted", "a list of at most 64 peer ids")
        self._int("samples", 0, _COUNT)
        self._bool("certified")
        self._bool("lone")
        self._float("heldout_ce", 0.0, 1e6, optional=True)
        self._times()

    def key(self, shard: int = 0) -> str:
        """DHT key it belongs under."""
        return progress_key(self.run_id, self.subject)


Record = BlockRecord | RunRecord | ProgressRecord
AnyRecord = TypeVar("AnyRecord", BlockRecord, RunRecord, ProgressRecord)
_KINDS: dict[str, type[Record]] = {kind.KIND: kind for kind in (BlockRecord, RunRecord, ProgressRecord)}


def seal(identity: Identity, record: Record, *, shard: int = 0) -> bytes:
    """Sign ``record`` and pack it for the DHT.

    Raises
    ------
    RecordError
        If ``identity`` is not its owner, or the result is above `MAX_RECORD` bytes.
    """
    if record.peer_id != identity.peer_id:
        raise RecordError(f"{record.KIND} record of {record.peer_id} cannot be signed by {identity.peer_id}")
    payload = pack(
        {"kind": record.KIND} | {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    )
    key = record.key(shard)
    sealed = pack({"k": key, "p": payload, "s": identity.sign(_signed_bytes(key, payload))})
    if len(sealed) > MAX_RECORD:
        raise RecordError(f"{record.KIND} record of {len(sealed)} bytes; at most {MAX_RECORD} are allowed")
    return sealed


def open_sealed(data: bytes, *, key: str | None = None, now: float) -> Record:
    """Check a sealed record in full and return it.

    Parameters
    ----------
    data : bytes
        What came from the network.
    key : str, optional
        The DHT key it was found under, when known; it must be the one the record is signed for.
    now : float
        Unix seconds.

    Raises
    ------
    RecordError
        With the reason, if anything about it is wrong. No other exception escapes, whatever the bytes are.
    """
    if len(data) > MAX_RECORD:
        raise RecordError(f"{len(data)} bytes; at most {MAX_RECORD} are allowed")
    signed_key, record = open_timeless(bytes(data))
    if key is not None and key != signed_key:
        raise RecordError(f"signed for key {signed_key!r}, found under {key!r}")
    check_times(record, now)
    return record


@functools.lru_cache(maxsize=2048)
def open_timeless(data: bytes) -> tuple[str, Record]:
    """Everything `open_sealed` checks except the times: ``(key it is signed for, record)``.

    Cached by content, for the DHT checks the same bytes again and again. A failure is not cached.
    """
    try:
        envelope = unpack_map(data, max_bytes=MAX_RECORD)
        if envelope.keys() != {"k", "p", "s"}:
            raise RecordError("its envelope must have the fields k, p, s")
        key, payload, signature = envelope["k"], envelope["p"], envelope["s"]
        if type(key) is not str or type(payload) is not bytes or type(signature) is not bytes:
            raise RecordError("the fields of its envelope have wrong types")
        fields = unpack_map(payload, max_bytes=MAX_RECORD)
        if pack(envelope) != data or pack(fields) != payload:
            raise RecordError("not in canonical form")
    except PackingError as error:
        raise RecordError(f"malformed: {error}") from None
    record = _parse(fields)
    if key != record.key() and not _is_shard(key, record):
        raise RecordError(f"signed for key {key[:120]!r}, its content belongs under {record.key()!r}")
    if len(signature) != SIGNATURE_BYTES or not verify(record.peer_id, _signed_bytes(key, payload), signature):
        raise RecordError(f"not signed by its owner {record.peer_id}")
    return key, record


def check_times(record: Record, now: float, *, grace: float = 0.0) -> None:
    """Refuse records that are expired (by more than ``grace`` seconds), far-future or impossible.

    Raises
    ------
    RecordError
        With the reason.
    """
    if record.expires + grace <= now:
        raise RecordError(f"expired {now - record.expires:.0f} s ago")
    if record.expires > now + MAX_LIFETIME:
        raise RecordError(f"expires in {record.expires - now:.0f} s; at most {MAX_LIFETIME:.0f} are allowed")
    if record.issued > now + MAX_SKEW:
        raise RecordError(f"issued {record.issued - now:.0f} s in the future; check the clocks")
    if record.issued >= record.expires:
        raise RecordError("expires before it was issued")


def _parse(fields: dict[str, Any]) -> Record:
    kind = fields.pop("kind", None)
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise RecordError("of unknown kind")
    names = {field.name for field in dataclasses.fields(made)}
    if fields.keys() != names:
        wrong = sorted(fields.keys() ^ names)[0]
        raise RecordError(f"{kind} record: field {wrong[:32]!r} is {'missing' if wrong in names else 'unknown'}")
    before = dict(fields)
    record = made(**fields)
    # A float written as an integer was corrected for the author's comfort; from the network it is ill-typed.
    for name, value in before.items():
        if type(value) is int and type(getattr(record, name)) is float:
            raise RecordError(f"{kind} record: {name} must be a float")
    return record


def _is_shard(key: str, record: Record) -> bool:
    if not isinstance(record, BlockRecord):
        return False
    suffix = key.removeprefix(record.key() + ".")
    if not (suffix.isascii() and suffix.isdigit() and len(suffix) <= 3):
        return False
    shard = int(suffix)
    return 0 < shard < MAX_SHARDS and key == record.key(shard)


def _signed_bytes(key: str, payload: bytes) -> bytes:
    return _DOMAIN + key.encode() + b"\0" + payload
