"""Counts in a manifest: a section that is there or not, and without which nothing is other than before."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from blockswarm.model.config import ModelConfig
from blockswarm.model.layout import COUNTS, EMBEDDING
from blockswarm.swarm.errors import GivenManifestError, ManifestError
from blockswarm.swarm.manifest import Manifest, create_manifest
from blockswarm.swarm.manifest_fields import MAX_COUNTS_BYTES, Counts
from blockswarm.swarm.subjects import block_word, subject_name, subject_names

SMALLEST = ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=16)
GIVEN = Counts(digest="ab" * 32, bytes=1024, order=8, weight=0.25)


def make(counts: Counts | None = GIVEN) -> Manifest:
    return create_manifest(name="demo", now=0.0, size=SMALLEST, round_seconds=20.0, outer="nesterov", counts=counts)


def test_without_counts_the_canonical_bytes_know_nothing_of_them() -> None:
    bare = make(None)
    assert "counts" not in msgpack.unpackb(bare.canonical())
    assert "counts" not in bare.to_toml()
    assert bare.counts is None and bare.served == (0, 1)
    # The identity of runs that were begun before there were counts.
    named = create_manifest(name="x", now=0.0)
    assert named.run_id == "x-df64e4239e1c"


def test_with_counts_it_is_another_run_and_reads_back_the_same() -> None:
    manifest = make()
    assert manifest.digest != make(None).digest
    assert Manifest.from_toml(manifest.to_toml()) == manifest
    assert Manifest.from_canonical(manifest.canonical()) == manifest
    section = manifest.to_toml().partition("[counts]")[2].strip().splitlines()
    assert len(section) == 4 and all("  # " in line for line in section)


def test_the_counts_are_a_subject_with_holders_and_no_rounds() -> None:
    manifest = make()
    assert manifest.served == (0, 1, COUNTS)
    assert COUNTS not in manifest.subjects
    assert manifest.genesis_digest(COUNTS) == bytes.fromhex(GIVEN.digest)
    assert 4 * manifest.parameters(COUNTS) == GIVEN.bytes
    assert manifest.momentum_of(0) and not manifest.momentum_of(COUNTS)
    with pytest.raises(ManifestError, match="has no n-gram counts"):
        make(None).genesis_digest(COUNTS)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("digest", "AB" * 32, "counts.digest: must be 64 lower-case hex digits"),
        ("bytes", MAX_COUNTS_BYTES + 8, "counts.bytes: must be less than or equal to"),
        ("bytes", 1025, "counts.bytes: must be a multiple of 8"),
        ("order", 9, "counts.order: must be less than or equal to 8"),
        ("order", 0, "counts.order: must be greater than or equal to 1"),
        ("weight", 0.0, "counts.weight: must be greater than 0"),
        ("weight", 1.0, "counts.weight: must be less than 1"),
        ("weight", float("nan"), "counts.weight: must be a finite number"),
        ("weigth", 0.5, "counts.weigth: unknown key (did you mean 'weight'?)"),
        ("weight", ..., "counts.weight: missing"),
    ],
)
def test_what_cannot_be_is_refused_by_name(key: str, value: Any, reason: str) -> None:
    mapping = make().to_mapping()
    if value is ...:
        del mapping["counts"][key]
    else:
        mapping["counts"][key] = value
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(mapping)
    assert any(problem.startswith(reason) for problem in caught.value.problems), caught.value.problems


def test_an_order_that_windows_could_cut_off_is_refused() -> None:
    """The first row taken from a window that does not begin the text has half a context before it."""
    model = ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=15)
    with pytest.raises(GivenManifestError, match="order: must be at most half the model's context of 15, is 8"):
        create_manifest(name="demo", now=0.0, size=model, round_seconds=20.0, counts=GIVEN)


def test_nothing_where_a_section_may_be_is_not_canonical() -> None:
    mapping = make(None).to_mapping() | {"counts": None}
    with pytest.raises(ManifestError, match="not in canonical form"):
        Manifest.from_canonical(msgpack.packb(dict(sorted(mapping.items()))))


def test_they_have_a_name_for_people_and_one_for_the_command_line() -> None:
    assert [subject_name(subject) for subject in (EMBEDDING, 1, COUNTS)] == ["the embedding", "block 1", "the counts"]
    assert (block_word(1), block_word(COUNTS)) == ("1", "counts")
    assert subject_names([1]) == "block 1"
    assert subject_names([0, 2]) == "blocks 0, 2"
    assert subject_names([0, 2, COUNTS]) == "blocks 0, 2 and the counts"
    assert subject_names([COUNTS]) == "the counts"
