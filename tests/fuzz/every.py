"""All targets there are, by name."""

from __future__ import annotations

from tests.fuzz import files, rounds, streams, wire
from tests.fuzz.target import Target


def _broken(data: bytes) -> bool:
    """For the test of the fuzzer itself: only coverage leads to what breaks it."""
    if data[:1] == b"n" and data[1:2] == b"o" and data[2:3] == b"!":
        raise ValueError("this breaks it")
    return True


TARGETS: dict[str, Target] = {
    target.name: target for module in (wire, files, streams, rounds) for target in module.TARGETS
}

BROKEN = Target("broken", _broken, lambda: [b"yes"])
