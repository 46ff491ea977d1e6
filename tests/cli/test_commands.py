"""What the commands do with their options, up to the point where the network begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from blockswarm.cli import main as front
from blockswarm.cli import options
from blockswarm.cli.bootstrap import ensure_manifest
from blockswarm.model.config import SIZES
from blockswarm.model.layout import COUNTS
from blockswarm.swarm.errors import ManifestError
from blockswarm.swarm.manifest import Manifest

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configs that `run_bootstrap` and `run_volunteer` were called with, instead of running them."""
    from blockswarm.peer import bootstrap, peer

    configs: list[Any] = []

    async def record(config: Any, stop: asyncio.Event) -> int:
        configs.append(config)
        return 0

    def run(program: Callable[[asyncio.Event], Any]) -> int:
        async def body() -> int:
            return int(await program(asyncio.Event()))

        return asyncio.run(body())

    monkeypatch.setattr(bootstrap, "run_bootstrap", record)
    monkeypatch.setattr(peer, "run_volunteer", record)
    monkeypatch.setattr("blockswarm.cli.join.run_until_stopped", run)
    monkeypatch.setattr("blockswarm.cli.bootstrap.run_until_stopped", run)
    return configs


def test_init_writes_a_manifest_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["init", "--size", "tiny", "--name", "hello", "--round-seconds", "15", "--seed", "3"]) == 0
    manifest = Manifest.load("swarm.toml")
    assert (manifest.name, manifest.rounds.seconds, manifest.seed) == ("hello", 15.0, 3)
    assert capsys.readouterr().out.splitlines() == [
        f"wrote swarm.toml: run {manifest.run_id}",
        "next: blockswarm bootstrap --peers-file bootstrap_peers.txt",
    ]


def test_the_next_step_after_init_names_the_manifest_that_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["init", "--output", "our swarm.toml"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ")
    assert command == "blockswarm bootstrap --manifest 'our swarm.toml' --peers-file bootstrap_peers.txt"


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_every_named_size_has_rounds_that_fit_it(size: str) -> None:
    assert front.run(["init", "--size", size]) == 0
    assert Manifest.load("swarm.toml").model == SIZES[size]


def test_init_never_overwrites(capsys: pytest.CaptureFixture[str]) -> None:
    Path("swarm.toml").write_text("mine")
    assert front.run(["init"]) == 2
    assert Path("swarm.toml").read_text() == "mine"
    assert "swarm.toml: exists already" in capsys.readouterr().err


def test_init_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["init", "--output", "other.toml", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["manifest"] == "other.toml"
    assert answer["digest"] == Manifest.load("other.toml").digest.hex()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--size huge", "no model size named 'huge'"),
        ("--recipe cake", "no recipe named 'cake'"),
        ("--round-seconds 0.1", "--round-seconds"),
        ("--compression zip", "--compression 'zip': must be one of none"),
        ("--outer adam", "--outer: must be 'none' or 'nesterov'"),
        ("--robust median", "--robust: must be"),
        ("--seed -1", "--seed: must be"),
        ("--train-samples -1", "--train-samples = -1: must lie between 0 and"),
        ("--name A_", "--name: must be"),
    ],
)
def test_init_names_what_cannot_work(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["init", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error and error.count("\n") == 1
    assert not Path("swarm.toml").exists()


def test_identity_is_made_once_and_then_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["identity", "my.key", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert front.run(["identity", "my.key", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (made.pop("created"), found.pop("created")) == (True, False)
    assert made == found
    assert made["peer_id"].startswith("12D3KooW")
    assert Path("my.key").stat().st_mode & 0o777 == 0o600


def test_bootstrap_makes_the_manifest_if_it_is_missing(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["bootstrap", "--init", "tiny", "--peers-file", "bootstrap_peers.txt"]) == 0
    (config,) = started
    assert Manifest.load("swarm.toml").model.blocks == 3
    assert config.manifest == Path("swarm.toml")
    assert config.peers_file == Path("bootstrap_peers.txt")
    assert config.state_dir == Path(".blockswarm/bootstrap-1")
    assert "wrote swarm.toml: run demo-" in capsys.readouterr().err


def test_bootstrap_uses_the_manifest_that_is_there_and_says_so(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    front.run(["init", "--name", "mine"])
    before = Path("swarm.toml").read_bytes()
    assert front.run(["bootstrap", "--init", "tiny"]) == 0
    assert Path("swarm.toml").read_bytes() == before
    assert "using swarm.toml, which exists: run mine-" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "given", "flag"),
    [
        ("small", {}, "--init"),
        ("tiny", {"name": "other"}, "--name"),
        ("tiny", {"round_seconds": 77.0}, "--round-seconds"),
        ("tiny", {"recipe": "paper"}, "--recipe"),
        ("tiny", {"train_samples": 1000}, "--train-samples"),
        ("tiny", {"compression": "fp16"}, "--compression"),
        ("tiny", {"outer": "nesterov"}, "--outer"),
        ("tiny", {"robust": "trimmed"}, "--robust"),
    ],
)
def test_bootstrap_refuses_to_serve_another_swarm_than_asked_for(size: str, given: dict[str, Any], flag: str) -> None:
    front.run(["init", "--size", "tiny", "--name", "mine"])
    with pytest.raises(
        ManifestError, match=rf"swarm\.toml: already describes another swarm \(mine-\w+; {flag} differs\)"
    ):
        ensure_manifest(Path("swarm.toml"), size, given)


def test_bootstrap_without_a_manifest_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["bootstrap"]) == 2
    assert "swarm.toml: cannot read the manifest" in capsys.readouterr().err


def test_options_of_a_new_manifest_need_init(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["bootstrap", "--round-seconds", "5"]) == 2
    assert "--round-seconds belongs to a new manifest: give --init SIZE too" in capsys.readouterr().err


def test_join_needs_nothing_but_the_peers_file(started: list[Any]) -> None:
    Path("bootstrap_peers.txt").write_text(f"# a comment\n{ADDRESS}\n")
    assert front.run(["join", "--block", "auto"]) == 0
    (config,) = started
    assert (config.block, config.peers, config.run_id) == (None, (ADDRESS,), None)
    assert config.state_dir == Path(".blockswarm/peer-1")
    assert config.listen == ("/ip4/0.0.0.0/tcp/0",)


def test_join_passes_every_option_on(started: list[Any]) -> None:
    arguments = "--block 2 --run demo-1 --manifest m.toml --data texts --threads 2 --device cpu --seed 7 --rounds 3"
    arguments += " --precision bf16 --compile --serve-share 0.3"
    arguments += " --bandwidth 20mbit --state-dir state --identity my.key --listen /ip4/127.0.0.1/tcp/0"
    arguments += f" --announce /ip4/1.2.3.4/tcp/4001 --json-log - --quiet --peer {ADDRESS}"
    assert front.run(["join", *arguments.split()]) == 0
    (config,) = started
    assert vars(config) == {
        "state_dir": Path("state"),
        "block": 2,
        "peers": (ADDRESS,),
        "peers_file": None,
        "run_id": "demo-1",
        "manifest": Path("m.toml"),
        "data": "texts",
        "counts": None,
        "identity": Path("my.key"),
        "listen": ("/ip4/127.0.0.1/tcp/0",),
        "announce": ("/ip4/1.2.3.4/tcp/4001",),
        "threads": 2,
        "device": "cpu",
        "precision": "bf16",
        "compiled": True,
        "seed": 7,
        "rounds": 3,
        "bandwidth": 2_500_000.0,
        "serve_share": 0.3,
        "json_log": "-",
        "quiet": True,
    }


def test_join_takes_the_counts_by_name(started: list[Any]) -> None:
    assert front.run(["join", "--block", "counts", "--counts", "c.ngram", "--peer", ADDRESS]) == 0
    (config,) = started
    assert (config.block, config.counts) == (COUNTS, Path("c.ngram"))


def test_join_without_a_peers_file_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["join"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "bootstrap_peers.txt" in error and error.count("\n") == 1
    assert not Path(".blockswarm").exists()


def test_a_malformed_peer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["join", "--peer", "127.0.0.1:4001"]) == 2
    assert capsys.readouterr().err.startswith("error: --peer bad multiaddr '127.0.0.1:4001'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--device gpu", "--device gpu: give auto, cpu, cuda or cuda:N"),
        ("--threads 0", "--threads 0"),
        ("--seed -1", "--seed -1"),
        ("--rounds 0", "--rounds 0"),
        ("--bandwidth 0mbit", "--bandwidth"),
        ("--serve-share 0", "--serve-share 0: give a number above 0 and at most 1"),
        ("--block -1", "--block -1"),
        ("--listen localhost:4001", "--listen bad multiaddr"),
    ],
)
def test_join_checks_its_options_before_it_makes_or_asks_anything(
    arguments: str, words: str, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(["join", "--peer", ADDRESS, *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error and error.count("\n") == 1
    assert started == []
    assert not Path(".blockswarm").exists()


@pytest.mark.parametrize("command", ["status", "evaluate"])
def test_a_peers_file_without_a_peer_is_named_with_what_to_do(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bootstrap_peers.txt").write_text("# nobody yet\n")
    assert front.run([command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: peers file bootstrap_peers.txt names no peer yet: ")
    assert "`blockswarm bootstrap --init tiny --peers-file bootstrap_peers.txt`" in error
    assert "--peer MULTIADDR" in error


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("20mbit", 2.5e6), ("20Mbit/s", 2.5e6), ("2.5MB", 2.5e6), ("100kb", 1e5), ("8bit", 1.0), ("1Gbit", 1.25e8)],
)
def test_bandwidths(text: str, bytes_per_second: float) -> None:
    assert options.bandwidth(text) == bytes_per_second


@pytest.mark.parametrize("text", ["fast", "20", "-3mbit", "20 apples"])
def test_bandwidths_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="20mbit"):
        options.bandwidth(text)


def test_a_demo_that_cannot_work_says_so_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["demo", "--peers", "2", "--blocks", "3"]) == 2
    assert capsys.readouterr().err == "error: --peers 2: give 3 (one for each block) to 64\n"
    assert front.run(["demo", "--data", "missing.txt"]) == 2
    assert "missing.txt: no such file or folder" in capsys.readouterr().err


def test_a_prompt_on_the_command_line_may_hold_bytes_that_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[bytes] = []

    class Swarm:
        def stream(self, prompt: bytes, **_: Any) -> list[str]:
            prompts.append(prompt)
            return ["on"]

    monkeypatch.setattr("blockswarm.cli.generate.asked_model", lambda **_: contextlib.nullcontext(Swarm()))
    assert front.run(["generate", os.fsdecode(b"caf\xe9"), "--peer", ADDRESS]) == 0
    assert prompts == [b"caf\xe9"]
