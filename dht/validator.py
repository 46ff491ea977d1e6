"""Lets only signed, well-typed, timely records into hivemind's DHT, on every node."""

from __future__ import annotations

import functools
from typing import Any

from blockswarm.clock import Clock
from blockswarm.dht.errors import RecordError
from blockswarm.dht.hivemind_parts import DHTID, DHTRecord
from blockswarm.dht.packing import PackingError, pack, unpack
from blockswarm.dht.records import MAX_RECORD, Record, check_times, open_timeless

EXPIRY_GRACE = 60.0
"""Seconds a record may have been expired and still not count as invalid.

hivemind throws away a whole answer, all holders of a block, when one entry in it is invalid; an entry that expires on
the way, or by a clock that differs a little, must not cost the others. It never gets stored (the storage drops expired
entries) nor listed (the directory checks the time exactly).
"""
EXPIRY_MISMATCH = 1.0
"""Seconds the DHT's expiration may differ from the signed one."""


class SignedRecordValidator:
    """Accepts a DHT entry only if its value is a sealed record that belongs exactly there.

    Belonging means: the DHT key is the hash of the key the record is signed for, the subkey is the signer's peer id,
    the expiration is the signed one. Plain values (without subkey) and foreign keys are refused.

    Parameters
    ----------
    clock : Clock
        The swarm's time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.refused = 0
        self.last_refusal = ""

    def validate(self, record: DHTRecord) -> bool:
        """Whether ``record`` may be kept or believed. Called for every store, and for every answer to a search."""
        try:
            self._check(record)
        except (RecordError, PackingError) as error:
            self.refused += 1
            self.last_refusal = str(error)
            return False
        return True

    def _check(self, entry: DHTRecord) -> None:
        value = unpack(entry.value, max_bytes=MAX_RECORD + 8)
        if type(value) is not bytes:
            raise RecordError("its value is not a sealed record")
        key, record = open_timeless(value)
        if _key_hash(key) != entry.key:
            raise RecordError(f"signed for key {key!r}, stored under another")
        if entry.subkey != pack(record.peer_id):
            raise RecordError(f"owned by {record.peer_id}, stored under another subkey")
        # The comparison is false for NaN.
        if not abs(record.expires - entry.expiration_time) <= EXPIRY_MISMATCH:
            raise RecordError("its expiration is not the signed one")
        check_times(record, self._clock.now(), grace=EXPIRY_GRACE)

    def sign_value(self, record: DHTRecord) -> bytes:
        """The value as it is: hivemind asks before it stores, and ours are signed already."""
        return bytes(record.value)

    def strip_value(self, record: DHTRecord) -> bytes:
        """The value as it is: hivemind asks before it hands one out, and whoever reads it wants the signature."""
        return bytes(record.value)


@functools.lru_cache(maxsize=1024)
def _key_hash(key: str) -> bytes:
    return bytes(DHTID.generate(source=key).to_bytes())


def parse_entries(values: dict[Any, Any], *, key: str, now: float) -> list[tuple[bytes, Record]]:
    """Sealed bytes and records of a dictionary found in the DHT; entries that do not hold right now are left out."""
    found = []
    for owner, entry in values.items():
        try:
            sealed = entry.value
            if type(sealed) is not bytes:
                continue
            signed_key, record = open_timeless(sealed)
            check_times(record, now)
        except RecordError:
            continue
        if signed_key == key and record.peer_id == owner:
            found.append((sealed, record))
    return found
