"""A model folder is whole or absent, and what is wrong with one is told in one line that names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from blockswarm.dht.identity import Identity
from blockswarm.errors import UsageError
from blockswarm.model.config import ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import chunk_digests, digest_of_chunks, layout_of, state_digest
from blockswarm.swarm.errors import GivenFolderError, ManifestError, ModelFolderError
from blockswarm.swarm.manifest import EMBEDDING, Manifest, create_manifest
from blockswarm.swarm.model_folder import SavedState, file_name, read_model_folder
from blockswarm.swarm.model_writer import ModelFolderWriter, write_model_folder
from blockswarm.swarm.statements import StatementError
from tests.swarm.counting import counted, section
from tests.swarm.signing import certify

MODEL = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=32)
MANIFEST = create_manifest(name="folder", now=0.0, size=MODEL, round_seconds=60.0, seed=3)
OTHER = create_manifest(name="other", now=0.0, size=MODEL, round_seconds=60.0, seed=4)
SIGNERS = [Identity.ephemeral() for _ in range(2)]
FILES = ["MODEL_CARD.md", "block-0.safetensors", "block-1.safetensors", "embedding.safetensors", "swarm.toml"]


def states(manifest: Manifest = MANIFEST, seed: int = 0) -> list[SavedState]:
    """A state of every subject, those of blocks certified."""
    made = []
    for subject in manifest.subjects:
        values = np.random.default_rng([seed, subject + 1]).standard_normal(manifest.parameters(subject)) * 0.3
        values = values.astype(np.float32)
        certificate = b""
        if subject != EMBEDDING:
            certificate = certify(manifest, SIGNERS, subject, 5, state_digest(values), 800)
        made.append(SavedState(subject, values, 5, 800, certificate))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was written."""
    write_model_folder(tmp_path / "model", MANIFEST, states())
    return tmp_path / "model"


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# -- whole ---------------------------------------------------------------------------------------------------------


def test_a_state_with_outer_momentum_is_still_proved_by_its_certificate(tmp_path: Path) -> None:
    """The certificate names values and momentum together; the folder keeps the values and what the rest hashes to."""
    manifest = create_manifest(name="outer", now=0.0, size=MANIFEST.model, outer="nesterov", round_seconds=60.0)
    made = []
    for subject in manifest.subjects:
        values, momentum = np.random.default_rng(subject + 1).standard_normal((2, manifest.parameters(subject)))
        values, momentum = values.astype(np.float32), momentum.astype(np.float32)
        digest = state_digest(values, momentum)
        certificate = certify(manifest, SIGNERS, subject, 5, digest, 800)
        made.append(SavedState(subject, values, 5, 800, certificate, digest_of_chunks(chunk_digests(momentum))))
        assert made[-1].digest == digest
    write_model_folder(tmp_path / "model", manifest, made)
    read = read_model_folder(tmp_path / "model")
    assert [read.states[state.subject].digest for state in made] == [state.digest for state in made]
    assert "together with its outer momentum" in (tmp_path / "model" / "MODEL_CARD.md").read_text()


def test_what_is_read_is_what_was_written(folder: Path) -> None:
    saved = read_model_folder(folder)
    assert saved.manifest == MANIFEST
    for state in states():
        found = saved.states[state.subject]
        np.testing.assert_array_equal(found.values, state.values)
        assert (found.round, found.samples, found.certificate) == (5, 800, state.certificate)
        assert found.digest == state_digest(state.values)
    assert saved.pin.embedding.digest == saved.states[EMBEDDING].digest
    assert {block: name.round for block, name in saved.pin.blocks.items()} == {0: 5, 1: 5}


def test_a_folder_holds_a_file_for_each_subject_with_named_tensors_and_notes(folder: Path) -> None:
    assert names(folder) == FILES
    with safe_open(folder / file_name(1), framework="numpy") as file:
        notes = file.metadata()
        assert set(file.keys()) == {entry.name for entry in layout_of(MODEL, 1).entries}
    assert (notes["run_id"], notes["subject"], notes["round"], notes["samples"]) == (MANIFEST.run_id, "1", "5", "800")
    assert notes["digest"] == states()[2].digest.hex()


def test_the_card_has_the_figures(folder: Path) -> None:
    card = (folder / "MODEL_CARD.md").read_text()
    for state in states():
        assert state.digest.hex() in card
    for words in (
        MANIFEST.run_id,
        "2 of 2 replicas",
        "`docs`",
        "| block 1 | 5 | 800 |",
        "Not measured",
        "--checkpoint model",
        "The digest is the SHA-256 over the SHA-256 of each 1 MiB of the values",
    ):
        assert words in card
    total = sum(MANIFEST.parameters(subject) for subject in MANIFEST.subjects)
    assert f"{total:,} in all" in card


def test_a_summary_tells_the_same_as_plain_values(tmp_path: Path) -> None:
    told = write_model_folder(tmp_path / "model", MANIFEST, states()).as_json()
    assert json.loads(json.dumps(told)) == told
    assert told["bytes"] == sum((tmp_path / "model" / entry["file"]).stat().st_size for entry in told["states"])
    assert [entry["voters"] for entry in told["states"]] == [0, 2, 2]


# -- writing over --------------------------------------------------------------------------------------------------


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model_folder(tmp_path / "model", MANIFEST, states())
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == FILES


def test_an_older_model_is_replaced_only_when_forced(folder: Path) -> None:
    with pytest.raises(GivenFolderError, match=r"older model; force=True replaces it"):
        write_model_folder(folder, MANIFEST, states(seed=1))
    np.testing.assert_array_equal(read_model_folder(folder).states[0].values, states()[1].values)
    write_model_folder(folder, MANIFEST, states(seed=1), force=True)
    np.testing.assert_array_equal(read_model_folder(folder).states[0].values, states(seed=1)[1].values)
    assert names(folder.parent) == ["model"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "notes.txt").write_text("mine"), "something else, such as notes.txt"),
        (lambda folder: (folder / "block-01.safetensors").write_text("mine"), "such as block-01.safetensors"),
        (lambda folder: (folder / "embedding.safetensors").unlink(), r"embedding.safetensors is missing"),
    ],
)
def test_what_is_not_only_a_model_is_never_overwritten(
    folder: Path, force: bool, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(folder)
    before = names(folder)
    with pytest.raises(GivenFolderError, match=words):
        write_model_folder(folder, MANIFEST, states(seed=1), force=force)
    assert names(folder) == before and names(folder.parent) == ["model"]


def test_a_file_in_its_place_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(GivenFolderError, match="is no folder"):
        write_model_folder(tmp_path / "model", MANIFEST, states(), force=True)
    assert (tmp_path / "model").read_text() == "mine"


# -- half-written --------------------------------------------------------------------------------------------------


def test_the_folder_that_one_stands_in_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model would be there, but not for the shell that asked for it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(GivenFolderError, match="cannot be replaced: name a folder in it"):
        ModelFolderWriter(".", MANIFEST).open()


def test_a_mount_point_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")
    with pytest.raises(GivenFolderError, match="is a mount point"), ModelFolderWriter(tmp_path / "disk", MANIFEST):
        pass


@pytest.mark.parametrize("name", ["loop/model", "nul\0byte"])
def test_a_place_that_is_none_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelFolderError, match="cannot be written"), ModelFolderWriter(tmp_path / name, MANIFEST):
        pass


def test_a_model_without_one_of_its_states_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="block 1 missing"):
        write_model_folder(tmp_path / "model", MANIFEST, states()[:-1])
    assert names(tmp_path) == []


def test_an_export_that_is_broken_off_leaves_nothing(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ModelFolderWriter(folder, MANIFEST, force=True) as writer:
        writer.add(states(seed=1)[0])
        raise KeyboardInterrupt
    assert names(folder.parent) == ["model"]
    np.testing.assert_array_equal(read_model_folder(folder).states[0].values, states()[1].values)


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_an_interruption_between_old_and_new_leaves_one_of_them_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The older model is moved aside, then the new one takes its place; Ctrl-C may come before, between and after."""
    rename, done = Path.rename, []

    def interrupted(path: Path, target: Path) -> Path:
        if len(done) == moved:
            monkeypatch.undo()
            raise KeyboardInterrupt
        done.append(path)
        moved_to = rename(path, target)
        if len(done) == moved == 2:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return moved_to

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_model_folder(folder, MANIFEST, states(seed=1), force=True)
    assert names(folder.parent) == ["model"]
    left = states(seed=1) if moved == 2 else states()
    np.testing.assert_array_equal(read_model_folder(folder).states[0].values, left[1].values)


def test_a_full_disk_is_one_line_and_the_older_model_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFolderError, match="model: cannot be written: No space left on device") as caught:
        write_model_folder(folder, MANIFEST, states(seed=1), force=True)
    assert not isinstance(caught.value, UsageError)  # nothing to change in what was asked
    monkeypatch.undo()
    assert names(folder.parent) == ["model"]
    read_model_folder(folder)


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(ModelFolderError, match="needs 17 MB and the disk has 1 MB free"):
        write_model_folder(tmp_path / "model", MANIFEST, states())
    assert names(tmp_path) == []


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    embedding, first, second = states()
    wrong = SavedState(1, first.values[:-1], 5, 800)
    with pytest.raises(ModelError, match="block 1 is float32"):
        write_model_folder(tmp_path / "model", MANIFEST, [embedding, first, wrong])
    forged = SavedState(1, second.values, 6, 800, second.certificate)
    with pytest.raises(StatementError, match="of another state"):
        write_model_folder(tmp_path / "model", MANIFEST, [embedding, first, forged])
    assert names(tmp_path) == []


# -- damaged -------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_none_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(GivenFolderError, match="missing: no such folder; `blockswarm export`"):
        read_model_folder(tmp_path / "missing")
    with pytest.raises(ModelFolderError, match=r"not a model folder \(swarm.toml is missing\)"):
        read_model_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFolderError, match="is not a folder"):
        read_model_folder(tmp_path / "file")


def truncate(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * place)] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "missing: without block 1 the model is not whole"),
        (lambda path: truncate(path, 0.0), "damaged or half-written"),
        (lambda path: truncate(path, 0.5), "damaged or half-written"),
        (lambda path: truncate(path, 0.999), "damaged or half-written"),
        (lambda path: flip(path, 1.0), "do not hash to their digest"),
        (lambda path: flip(path, 0.7), "do not hash to their digest"),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(3 << 20)), "larger than block 1 of this model can be"),
        (lambda path: shutil.copy(path.with_name("block-0.safetensors"), path), "holds subject 0, not block 1"),
        (lambda path: shutil.copy(path.with_name("embedding.safetensors"), path), "holds subject -1, not block 1"),
        (lambda path: path.write_text("not a model"), "damaged or half-written"),
    ],
)
def test_a_damaged_state_is_named_with_the_reason(folder: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(folder / file_name(1))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(GivenFolderError, match=words) as caught:
        read_model_folder(folder)
    assert "block-1.safetensors: " in str(caught.value) and "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_no_flipped_bit_of_a_state_goes_unseen(folder: Path) -> None:
    path = folder / file_name(EMBEDDING)
    whole = path.read_bytes()
    expected = read_model_folder(folder)
    for place in np.random.default_rng(0).integers(0, len(whole), size=60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = read_model_folder(folder)
        except ModelFolderError as error:
            assert path.name in str(error)
        else:  # padding
            assert found.pin == expected.pin
            assert found.states[EMBEDDING].samples == expected.states[EMBEDDING].samples


def test_states_of_another_run_are_not_mixed_in(folder: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "other", OTHER, states(OTHER))
    shutil.copy(tmp_path / "other" / file_name(0), folder / file_name(0))
    with pytest.raises(ModelFolderError, match=rf"block-0.safetensors: of another run \({OTHER.run_id}\)"):
        read_model_folder(folder)


def test_a_manifest_that_is_another_or_none_is_named(folder: Path) -> None:
    (folder / "swarm.toml").write_text(OTHER.to_toml())
    with pytest.raises(ModelFolderError, match=rf"of another run \({MANIFEST.run_id}\) than swarm.toml"):
        read_model_folder(folder)
    (folder / "swarm.toml").write_text("name = ")
    with pytest.raises(ManifestError, match=r"swarm.toml: not valid TOML"):
        read_model_folder(folder)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    made = states()
    values = made[0].values.copy()
    values[7] = np.nan
    write_model_folder(tmp_path / "model", MANIFEST, [SavedState(EMBEDDING, values, 5, 800), *made[1:]])
    with pytest.raises(ModelFolderError, match=r"embedding.safetensors: not all its values are finite"):
        read_model_folder(tmp_path / "model")


# -- counts --------------------------------------------------------------------------------------------------------


def test_a_folder_carries_the_counts_of_its_manifest(tmp_path: Path) -> None:
    counts = counted()
    manifest = create_manifest(name="folder", now=0.0, size=MODEL, round_seconds=60.0, seed=3, counts=section(counts))
    made, path = states(manifest), tmp_path / "model"
    with pytest.raises(ModelFolderError, match="the counts missing"):
        write_model_folder(path, manifest, made)
    with pytest.raises(ModelFolderError, match="are not those of"):
        write_model_folder(path, manifest, made, counts=counted(order=3))
    summary = write_model_folder(path, manifest, made, counts=counts)
    write_model_folder(path, manifest, made, counts=counts, force=True)  # an older one with counts is a model, too
    assert names(path) == sorted([*FILES, "counts.ngram"])
    found = read_model_folder(path).counts
    assert found is not None and found.digest == counts.digest
    card = (summary.folder / "MODEL_CARD.md").read_text()
    assert counts.digest.hex() in card and "weight 0.4" in card

    file = path / "counts.ngram"
    file.write_bytes(bytes(counts.data)[:-8])
    with pytest.raises(GivenFolderError, match=r"counts\.ngram: has .* copy or export it again"):
        read_model_folder(path)
    file.unlink()
    with pytest.raises(GivenFolderError, match=r"counts\.ngram: missing"):
        read_model_folder(path)
