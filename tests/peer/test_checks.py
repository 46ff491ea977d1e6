"""A volunteer's options are held against this machine and its files before anybody is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockswarm.errors import UsageError
from blockswarm.model.config import ModelConfig
from blockswarm.model.errors import CorpusError, OptionError
from blockswarm.peer.checks import read_inputs
from blockswarm.peer.config import ConfigError, PeerConfig
from blockswarm.swarm.manifest import Manifest, create_manifest

MODEL = ModelConfig(kind="transformer", dim=16, blocks=2, layers=1, heads=2, context=32)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest file of two blocks with a context of 32 bytes."""
    path = tmp_path_factory.mktemp("manifest") / "swarm.toml"
    path.write_text(create_manifest(name="small", size=MODEL, data="a text", now=0.0).to_toml())
    return path


def config(**options: Any) -> PeerConfig:
    return PeerConfig(state_dir=Path("unused"), **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("block", -1), ("threads", 0), ("device", "gpu"), ("device", "cuda:"), ("seed", -1), ("seed", 2**63),
     ("rounds", 0), ("bandwidth", 0.0), ("serve_share", 0.0), ("serve_share", 1.01),
     ("listen", ()), ("listen", ("0.0.0.0:4001",))],
)  # fmt: skip
def test_values_that_cannot_work_anywhere(option: str, value: object) -> None:
    with pytest.raises(UsageError, match=option):
        config(**{option: value}).validate()


def test_a_device_that_this_machine_lacks() -> None:
    with pytest.raises(OptionError, match="device 'cuda:99' cannot be used"):
        read_inputs(config(device="cuda:99"))


def test_a_text_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        read_inputs(config(data=str(tmp_path / "missing.txt")))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(CorpusError, match="is empty"):
        read_inputs(config(data=str(tmp_path / "empty.txt")))


def test_a_text_too_short_for_the_manifest_at_hand(tmp_path: Path, manifest: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("x" * 40)
    with pytest.raises(CorpusError, match="context of 32"):
        read_inputs(config(data=str(text), manifest=manifest))
    # Without a manifest the context is not known yet.
    inputs = read_inputs(config(data=str(text)))
    with pytest.raises(CorpusError, match="context of 32"):
        inputs.take_corpus(Manifest.load(manifest))


def test_the_manifests_own_text_is_read_when_no_other_is_named(manifest: Path) -> None:
    with pytest.raises(CorpusError, match="a text: no such file"):
        read_inputs(config(manifest=manifest))


def test_options_that_contradict_the_manifest(manifest: Path) -> None:
    with pytest.raises(ConfigError, match="not of run_id other-000000000000"):
        read_inputs(config(manifest=manifest, run_id="other-000000000000"))
    with pytest.raises(ConfigError, match=r"block 2: small-.* has blocks 0 to 1"):
        read_inputs(config(manifest=manifest, block=2))


def test_what_is_named_is_read_once(tmp_path: Path, manifest: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox. " * 20)
    inputs = read_inputs(config(data=str(text), manifest=manifest, block=1))
    text.unlink()
    assert inputs.manifest == Manifest.load(manifest)
    assert inputs.take_corpus(Manifest.load(manifest)).name == str(text)
    assert inputs.text is None, "a gigabyte of text is not held beside the corpus made of it"


def test_with_nothing_named_everything_comes_from_the_swarm() -> None:
    inputs = read_inputs(config())
    assert (inputs.manifest, inputs.spec, inputs.text) == (None, None, None)
