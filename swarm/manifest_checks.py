"""What the sections of a manifest must have in common, and what is said where they have not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockswarm.dht.frames import PROTOCOL_VERSION
from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import layout_of
from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest_fields import MAX_BLOCK_PARAMETERS, Counts, Rounds, show


def check_sizes(model: ModelConfig, outer: str) -> list[str]:
    """What is wrong with the size of a valid model's states, if anything."""
    size, most = layout_of(model, 0).size, MAX_BLOCK_PARAMETERS
    if outer != "none":
        most //= 2  # a state holds the outer momentum too
    return [f"model: a block of {size:,} parameters is more than the {most:,} allowed"] if size > most else []


def pick(choice: Any, known: Mapping[str, Any], what: str) -> Any:
    """What is known by the name ``choice``, or ``choice`` itself if it is no name; raises `ManifestError`."""
    if not isinstance(choice, str):
        return choice
    if choice not in known:
        raise ManifestError(f"no {what} named {choice!r}; there are {', '.join(sorted(known))}")
    return known[choice]


def check_protocol(version: object, source: str) -> None:
    """Raise `ManifestError` for a version of the protocol that this program does not speak."""
    if isinstance(version, int) and not isinstance(version, bool) and version != PROTOCOL_VERSION:
        who = "upgrade blockswarm here" if version > PROTOCOL_VERSION else "its volunteers must upgrade blockswarm"
        raise ManifestError(
            f"{source}: the swarm speaks protocol {show(version)} and this program {PROTOCOL_VERSION}: {who}"
        )


def check_counts(counts: Counts | None, model: ModelConfig) -> list[str]:
    """Where the counts contradict a valid model."""
    if counts is None or counts.order <= model.context // 2:
        return []
    # Windows of a long text begin half a context before the first row that is taken from them.
    return [f"counts.order: must be at most half the model's context of {model.context}, is {counts.order}"]


def check_rounds(rounds: Rounds) -> list[str]:
    """Where the lengths in ``rounds`` contradict each other."""
    problems = []
    if rounds.lengths.total >= rounds.seconds:
        problems.append(
            f"rounds: the phases take {rounds.lengths.total:g} s of a round of {rounds.seconds:g} s and leave no time "
            "to train; lengthen rounds.seconds or shorten the phases"
        )
    if rounds.tolerance > rounds.seconds / 2:
        problems.append(f"rounds.tolerance: must be at most half a round ({rounds.seconds / 2:g} s)")
    return problems
