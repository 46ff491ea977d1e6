"""All targets there are, by name."""

from __future__ import annotations

from tests.fuzz import files, rounds, streams, wire
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for module in (wire, files, streams, rounds) for target in module.TARGETS
}
