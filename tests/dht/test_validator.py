"""The gatekeeper of the DHT: whatever is sent to be stored is kept or refused, and nothing is raised in hivemind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockswarm.clock import ManualClock
from blockswarm.dht.hivemind_parts import DHTID, DHTRecord
from blockswarm.dht.packing import pack
from blockswarm.dht.records import open_timeless, seal
from blockswarm.dht.validator import SignedRecordValidator, parse_entries
from tests.fuzz.every import TARGETS
from tests.fuzz.strategies import inputs
from tests.fuzz.target import IDENTITIES, NOW

GOOD = TARGETS["record"].seeds()[0]
KEY, RECORD = open_timeless(GOOD)


def entry(**changes: Any) -> DHTRecord:
    """A record as hivemind hands it over, with ``changes``."""
    key = DHTID.generate(source=KEY).to_bytes()
    fields = {"key": key, "subkey": pack(RECORD.peer_id), "value": pack(GOOD), "expiration_time": RECORD.expires}
    return DHTRecord(**(fields | changes))


def test_a_good_record_in_its_place_is_kept() -> None:
    assert SignedRecordValidator(ManualClock(NOW)).validate(entry())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"key": b"k" * 20}, id="under another key"),
        pytest.param({"subkey": pack(IDENTITIES[1].peer_id)}, id="under another owner"),
        pytest.param({"subkey": b""}, id="without an owner"),
        pytest.param({"expiration_time": RECORD.expires + 30.0}, id="kept for longer"),
        pytest.param({"expiration_time": float("nan")}, id="kept for no number of seconds"),
        pytest.param({"expiration_time": float("inf")}, id="kept for ever"),
        pytest.param({"value": GOOD}, id="not packed"),
        pytest.param({"value": pack(GOOD[:-1])}, id="cut off"),
        pytest.param({"value": pack("text")}, id="text"),
        pytest.param({"value": b""}, id="nothing"),
        pytest.param({"value": b"\xdd\x00\x00\xc3\x50" * 200}, id="lists in lists"),
        pytest.param({"value": pack(bytes(5000))}, id="too large"),
    ],
)
def test_a_record_anywhere_else_or_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    validator = SignedRecordValidator(ManualClock(NOW))
    assert not validator.validate(entry(**changes))
    assert validator.refused == 1 and validator.last_refusal.isprintable()


@settings(max_examples=200, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(value=inputs(TARGETS["record"]), packed=st.booleans(), subkey=st.binary(max_size=64), expires=st.floats())
def test_any_bytes_are_kept_or_refused(value: bytes, packed: bool, subkey: bytes, expires: float) -> None:
    validator = SignedRecordValidator(ManualClock(NOW))
    for changes in ({}, {"subkey": subkey}, {"expiration_time": expires}):
        validator.validate(entry(value=pack(value) if packed else value, **changes))
    assert validator.last_refusal.isprintable()


class _Found:
    """What a search of the DHT gives for one owner."""

    def __init__(self, value: object) -> None:
        self.value = value


def test_what_a_search_finds_is_believed_entry_by_entry() -> None:
    other = TARGETS["record"].seeds()[2]
    values = {
        RECORD.peer_id: _Found(GOOD),
        IDENTITIES[1].peer_id: _Found(GOOD),
        "a": _Found(None),
        "b": _Found(7),
        b"c": _Found(b""),
        None: _Found(other),
    }
    assert parse_entries(values, key=KEY, now=NOW) == [(GOOD, RECORD)]
    assert seal(IDENTITIES[0], RECORD) == GOOD
