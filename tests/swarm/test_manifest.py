"""A manifest names a swarm: equal values, equal digest; anything broken is refused with every reason at once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockswarm.model.config import SIZES, ModelConfig
from blockswarm.model.layout import EMBEDDING, state_digest
from blockswarm.swarm.codec import FOR_RUNS
from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest import PROTOCOL_VERSION, Manifest, create_manifest, subject_name

NOW = 1_764_489_600.25
SMALLEST = ModelConfig(dim=8, blocks=2, layers=1, heads=2, context=8)


def make(**changes: Any) -> Manifest:
    return create_manifest(**{"name": "demo", "now": NOW, "size": SMALLEST, "round_seconds": 20.0} | changes)


MANIFEST = make()


def edited(path: str, value: object) -> dict[str, Any]:
    """The manifest as plain data with one value replaced, or removed when ``value`` is ``...``."""
    mapping = MANIFEST.to_mapping()
    *sections, key = path.split(".")
    target = mapping
    for section in sections:
        target = target[section]
    if value is ...:
        del target[key]
    else:
        target[key] = value
    return mapping


def problems_of(mapping: object) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(mapping, source="swarm.toml")
    assert str(caught.value).startswith("swarm.toml: ")
    assert "\n" not in str(caught.value)
    return caught.value.problems


# -- identity ------------------------------------------------------------------------------------------------------


def test_the_run_id_is_the_name_and_the_first_digits_of_the_digest() -> None:
    assert MANIFEST.digest == hashlib.sha256(MANIFEST.canonical()).digest()
    assert MANIFEST.run_id == f"demo-{MANIFEST.digest.hex()[:12]}"


def test_the_canonical_bytes_are_msgpack_with_sorted_keys() -> None:
    def keys_sorted(value: object) -> bool:
        if isinstance(value, dict):
            return list(value) == sorted(value) and all(map(keys_sorted, value.values()))
        return True

    assert keys_sorted(msgpack.unpackb(MANIFEST.canonical()))


def test_toml_and_canonical_bytes_read_back_to_the_same_manifest() -> None:
    assert Manifest.from_toml(MANIFEST.to_toml()) == MANIFEST
    assert Manifest.from_canonical(MANIFEST.canonical()) == MANIFEST
    assert Manifest.from_toml(MANIFEST.to_toml()).digest == MANIFEST.digest


_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
_floats = st.floats(min_value=0.001, max_value=1.0)


@settings(max_examples=60, deadline=None)
@given(
    name=_names,
    seed=st.integers(0, 2**63 - 1),
    now=st.floats(0, 2**32),
    data=st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable() and text == text.strip()),
    round_seconds=st.floats(8.0, 86_400.0),
    carry_discount=_floats,
    local_steps=st.one_of(st.just("elastic"), st.integers(1, 1_000_000)),
    max_norm_ratio=st.floats(1.5, 1000.0),
    compression=st.sampled_from(FOR_RUNS),
)
def test_any_manifest_survives_both_encodings(**values: Any) -> None:
    manifest = make(**values)
    again = Manifest.from_toml(manifest.to_toml())
    assert again == manifest
    assert again.digest == manifest.digest
    assert Manifest.from_canonical(manifest.canonical()).digest == manifest.digest


def test_comments_order_and_whole_numbers_do_not_change_the_digest() -> None:
    lines = [line.split("  #")[0] for line in MANIFEST.to_toml().splitlines()]
    text = (
        "\n".join(lines)
        .replace("seconds = 20.0", "seconds = 20")
        .replace("carry_discount = 0.5", "carry_discount = 5e-1")
    )
    assert Manifest.from_toml(text).digest == MANIFEST.digest


def test_any_changed_value_is_another_run() -> None:
    changed = [edited("rounds.late", "drop"), edited("recipe.batch", 17), edited("seed", 1), edited("data.name", "x")]
    digests = {Manifest.from_mapping(mapping).digest for mapping in changed}
    assert len(digests | {MANIFEST.digest}) == 5


def test_minus_zero_is_zero() -> None:
    mapping = edited("rounds.carry_discount", -0.0)
    assert Manifest.from_mapping(mapping).digest == Manifest.from_mapping(edited("rounds.carry_discount", 0.0)).digest


def test_bytes_that_are_not_canonical_are_refused() -> None:
    mapping = MANIFEST.to_mapping()
    with pytest.raises(ManifestError, match="not in canonical form"):
        Manifest.from_canonical(msgpack.packb(dict(reversed(mapping.items()))))
    for junk in (
        b"",
        b"\xc1",
        b"\x93\x01\x02",
        MANIFEST.canonical()[:-1],
        MANIFEST.canonical() + b"\0",
        b"\x81" * 5000,
    ):
        with pytest.raises(ManifestError):
            Manifest.from_canonical(junk)
    with pytest.raises(ManifestError, match="more than the 65536"):
        Manifest.from_canonical(bytes(70_000))


# -- genesis -------------------------------------------------------------------------------------------------------


def test_every_peer_computes_the_genesis_and_compares_it() -> None:
    for subject in MANIFEST.subjects:
        values = MANIFEST.verify_genesis(subject)
        assert values.dtype == np.float32
        assert values.shape == (MANIFEST.parameters(subject),)
        assert state_digest(values) == MANIFEST.genesis_digest(subject)
    assert list(MANIFEST.subjects) == [EMBEDDING, 0, 1]


def test_with_an_outer_momentum_the_genesis_digest_covers_its_zeros() -> None:
    outer = make(outer="nesterov")
    values = outer.verify_genesis(0)
    assert np.array_equal(values, MANIFEST.verify_genesis(0))
    assert outer.genesis_digest(0) == state_digest(values, np.zeros_like(values)) != MANIFEST.genesis_digest(0)
    mapping = MANIFEST.to_mapping()
    mapping["averaging"]["outer"] = "nesterov"
    with pytest.raises(ManifestError, match="genesis of block 0"):
        Manifest.from_mapping(mapping).verify_genesis(0)


def test_a_genesis_that_differs_names_the_subject() -> None:
    mapping = MANIFEST.to_mapping()
    mapping["genesis"]["blocks"][1] = "0" * 64
    forged = Manifest.from_mapping(mapping)
    assert forged.verify_genesis(0).size
    with pytest.raises(ManifestError, match="genesis of block 1"):
        forged.verify_genesis(1)
    mapping["genesis"]["embedding"] = "f" * 64
    with pytest.raises(ManifestError, match="genesis of the embedding"):
        Manifest.from_mapping(mapping).verify_genesis(EMBEDDING)


def test_subjects_have_names_for_people() -> None:
    assert [subject_name(subject) for subject in (EMBEDDING, 0, 2)] == ["the embedding", "block 0", "block 2"]


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("name", "Two Words", "must be 1 to 32 of a-z"),
        ("name", "x" * 33, "must be 1 to 32 of a-z"),
        ("name", ..., "missing"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 2**63, "less than"),
        ("seed", True, "must be a whole number"),
        ("genesis_time", float("inf"), "finite number"),
        ("model.dim", ..., "missing"),
        ("model.dim", 10**9, "must lie between"),
        ("model.dim", "96", "must be a whole number"),
        ("model.heads", 3, "dim / heads"),
        ("model.kind", "rnn", "must be one of"),
        ("recipe.learning_rate", float("nan"), "must be a finite number"),
        ("recipe.learning_rate", True, "must not be a boolean"),
        ("recipe.batch", 16.5, "must be a whole number"),
        ("recipe.betas", [0.9], "must be a list of 2 numbers"),
        ("recipe.betas", [0.9, float("nan")], "finite"),
        ("recipe.sigma_max", 0.5, "must be above sigma_min"),
        ("data.name", "", "at least 1 character"),
        ("data.name", "a\x1b[2J", "printable"),
        ("data.heldout_digest", "abc", "64 lower-case hex digits"),
        ("rounds.seconds", 0, "greater than 0"),
        ("rounds.seconds", "10", "must be a number"),
        ("rounds.local_steps", "fast", 'must be "elastic"'),
        ("rounds.local_steps", 0, "between 1 and 1000000"),
        ("rounds.late", "retry", "'carry' or 'drop'"),
        ("rounds.carry_discount", 1.5, "less than or equal to 1"),
        ("rounds.group_size", 1, "greater than or equal to 2"),
        ("averaging.compression", "experimental-dct", "do not decode to the same bits everywhere"),
        ("averaging.compression", "zip", "'none', 'fp16', 'int8', 'int4'"),
        ("averaging.max_weight_ratio", 0.5, "greater than or equal to 1"),
        ("averaging.robust", "median", "'none', 'clip', 'trimmed' or 'centered'"),
        ("averaging.clip_ratio", 0.5, "greater than or equal to 1"),
        ("averaging.outer", "adam", "'none' or 'nesterov'"),
        ("averaging.outer_momentum", 1.0, "less than 1"),
        ("averaging.outer_rate", 0.0, "greater than 0"),
        ("limits.directory_shards", 0, "greater than or equal to 1"),
        ("genesis.embedding", "12", "64 lower-case hex digits"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(path: str, value: object, reason: str) -> None:
    problems = problems_of(edited(path, value))
    assert len(problems) == 1
    assert problems[0].startswith(path)
    assert reason in problems[0]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("rounds.secunds", "did you mean 'seconds'?"),
        ("model.dimm", "did you mean 'dim'?"),
        ("recipe.zzz", "remove it"),
        ("colour", "remove it"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(path: str, reason: str) -> None:
    (problem,) = problems_of(edited(path, 1))
    assert problem.startswith(f"{path}: unknown key")
    assert reason in problem


def test_a_missing_section_is_one_problem() -> None:
    assert problems_of(edited("model", ...)) == ("model: missing",)
    assert problems_of(edited("rounds", 3))[0].startswith("rounds: must be")


def test_all_problems_are_told_at_once() -> None:
    mapping = edited("rounds.late", "retry")
    mapping["model"]["dimm"] = 3
    mapping["recipe"]["batch"] = "many"
    mapping["name"] = ""
    assert len(problems_of(mapping)) == 4


def test_phases_longer_than_the_round_are_refused_with_the_numbers() -> None:
    (problem,) = problems_of(edited("rounds.meet", 19.0))
    assert "of a round of 20 s" in problem


def test_a_clock_tolerance_of_more_than_half_a_round_is_refused() -> None:
    (problem,) = problems_of(edited("rounds.tolerance", 15.0))
    assert problem.startswith("rounds.tolerance: must be at most half a round")


def test_the_number_of_genesis_digests_must_fit_the_model() -> None:
    mapping = MANIFEST.to_mapping()
    mapping["genesis"]["blocks"].pop()
    assert problems_of(mapping) == ("genesis.blocks: 1 digests for a model of 2 blocks",)


def test_an_absurd_product_of_allowed_sizes_is_refused_before_anything_is_allocated() -> None:
    mapping = MANIFEST.to_mapping()
    mapping["model"] |= {"dim": 16_384, "layers": 256}
    (problem,) = problems_of(mapping)
    assert "parameters is more than" in problem


def test_another_protocol_version_says_who_must_upgrade() -> None:
    with pytest.raises(ManifestError, match="upgrade blockswarm here"):
        Manifest.from_mapping(edited("protocol", PROTOCOL_VERSION + 1))
    with pytest.raises(ManifestError, match="its volunteers must upgrade"):
        Manifest.from_mapping(edited("protocol", PROTOCOL_VERSION - 1))


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "model", "rounds", "genesis", "seed", "dim"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_no_mapping_whatever_gets_past_with_another_error(value: object) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_mapping(value)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_manifest_file_is_read_and_errors_name_it(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text(MANIFEST.to_toml(), encoding="utf-8")
    assert Manifest.load(path) == MANIFEST
    path.write_text("name = x\nseed = 1", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"swarm\.toml: not valid TOML: .*line 1"):
        Manifest.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match=r"swarm\.toml: not UTF-8"):
        Manifest.load(path)
    path.write_bytes(b"#" * 70_000)
    with pytest.raises(ManifestError, match="larger than 65536 bytes"):
        Manifest.load(path)
    with pytest.raises(ManifestError, match=r"absent\.toml: cannot read the manifest: No such file"):
        Manifest.load(tmp_path / "absent.toml")
    with pytest.raises(ManifestError, match="cannot read the manifest: Is a directory"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("text", ["seed = 1" + "0" * 5000, "x = " + "[" * 5000, "a = nan\nb = inf\n"])
def test_hostile_toml_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_toml(text)


def test_every_field_in_the_file_has_a_comment() -> None:
    fields = [line for line in MANIFEST.to_toml().splitlines() if " = " in line and not line.startswith("#")]
    bare = [line for line in fields if "#" not in line and not line.endswith("= [")]
    assert bare == []


# -- making one ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", sorted(SIZES))
def test_named_sizes_make_valid_manifests(size: str) -> None:
    manifest = make(size=size, round_seconds=600.0)
    assert manifest.model == SIZES[size]
    assert manifest.rounds.lengths.total < 0.71 * manifest.rounds.seconds


def test_the_first_round_starts_at_a_whole_second() -> None:
    assert MANIFEST.genesis_time == 1_764_489_601.0


def test_unknown_names_are_told_with_the_known_ones() -> None:
    with pytest.raises(ManifestError, match="no model size named 'huge'; there are base, small, tiny"):
        make(size="huge")
    with pytest.raises(ManifestError, match=r"compression 'zip': must be one of none, fp16"):
        make(compression="zip")
    with pytest.raises(ManifestError, match=r"compression 'experimental-dct': must be one of none, fp16"):
        make(compression="experimental-dct")
    with pytest.raises(ManifestError, match=r"new manifest: outer: must be 'none' or 'nesterov', is 'adam'$"):
        make(outer="adam")
    with pytest.raises(ManifestError, match="no recipe named 'cake'; there are default, paper"):
        make(recipe="cake")


def test_a_round_too_short_for_the_update_says_how_long_would_do() -> None:
    with pytest.raises(ManifestError, match=r"too short: an update of .* MB at 20\.0 Mbit/s needs at least \d+ s"):
        make(size="base", round_seconds=10.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ManifestError):
            make(round_seconds=seconds)


def test_a_smaller_encoding_lets_rounds_be_shorter() -> None:
    with pytest.raises(ManifestError, match="too short"):
        make(size="base", round_seconds=60.0, compression="none")
    assert make(size="base", round_seconds=60.0, compression="int4").averaging.compression == "int4"


def test_short_rounds_get_a_tighter_clock_tolerance() -> None:
    assert make(round_seconds=6.0).rounds.tolerance == 1.5
    assert make(round_seconds=60.0).rounds.tolerance == 2.0


def test_given_phase_lengths_are_taken() -> None:
    phases = {"meet": 1.0, "scatter": 0.5, "decide": 0.25, "gather": 0.5, "commit": 0.25}
    assert make(phases=phases).rounds.lengths.total == 2.5


def test_reading_a_manifest_needs_neither_torch_nor_a_network_stack() -> None:
    modules = "blockswarm.swarm.manifest, blockswarm.swarm.memory, blockswarm.swarm.messages"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'hivemind', 'libp2p', 'trio'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
