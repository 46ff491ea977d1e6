"""Who owns the n-gram counts, where they come from, and when they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from blockswarm.clock import SystemClock
from blockswarm.dht.host import Host
from blockswarm.model.config import ModelConfig
from blockswarm.model.corpus import open_corpus
from blockswarm.model.layout import COUNTS
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.peer import joining
from blockswarm.peer.checks import read_inputs
from blockswarm.peer.config import ConfigError, PeerConfig
from blockswarm.peer.connection import Connection
from blockswarm.peer.counts_post import rounds_over, take_counts_post
from blockswarm.peer.joining import JoinError, check_block, check_memory, counts_only
from blockswarm.peer.view import SwarmView
from blockswarm.swarm.counts.files import file_name
from blockswarm.swarm.manifest import Manifest, create_manifest
from tests.peer.hosts import running_hosts
from tests.swarm.counting import TEXT, counted, section

MODEL = ModelConfig(dim=16, blocks=2, layers=1, heads=2, context=32)


def manifest_with(counts: NgramModel | None) -> Manifest:
    named = None if counts is None else section(counts)
    return create_manifest(name="counts", now=0.0, size=MODEL, round_seconds=60.0, counts=named)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture(scope="module")
def counts(text: Path) -> NgramModel:
    """Of the training part, pruned."""
    return NgramModel(build_ngram_file(open_corpus(str(text), context=32).train, order=5, min_count=3))


class Nobody:
    """A directory in which nobody is listed, or who was entered."""

    def __init__(self, *records: Any) -> None:
        self._records = records

    async def entries(self, block: int) -> list[Any]:
        return [record for record in self._records if record.block == block]


@pytest.fixture
async def hosts(counts: NgramModel) -> AsyncIterator[list[Host]]:
    async with running_hosts(2, manifest_with(counts).digest) as hosts:
        yield hosts


def connection(host: Host, counts: NgramModel, *records: Any) -> Connection:
    manifest, clock = manifest_with(counts), SystemClock()
    directory: Any = Nobody(*records)
    view = SwarmView(directory, manifest, host.peer_id, clock)
    return Connection(host, manifest, directory, view, clock, counts_only=True)


def on_record(host: Host) -> Any:
    """A record of a holder of counts."""
    now = SystemClock().now()
    return SimpleNamespace(block=COUNTS, peer_id=host.peer_id, state="SERVING", issued=now, expires=now + 60)


async def take(connection: Connection, folder: Path, **options: Any) -> list[str]:
    """Take the post and leave it; the messages."""
    told: list[dict[str, Any]] = []
    post = await take_counts_post(connection, PeerConfig(state_dir=folder, block=COUNTS, **options), told.append)
    state = post.store.head(COUNTS)
    assert state is not None and state.digest == connection.manifest.genesis_digest(COUNTS)
    assert (post.block, post.samples_per_second) == (COUNTS, 0.0)
    await post.stop()
    return [str(event.get("message", event["event"])) for event in told]


# -- where they come from ----------------------------------------------------------------------------------------------


async def test_a_file_that_is_given_is_served_where_it_lies(
    hosts: list[Host], counts: NgramModel, tmp_path: Path
) -> None:
    file = tmp_path / "given.ngram"
    file.write_bytes(counts.data)
    assert await take(connection(hosts[0], counts), tmp_path / "state", counts=file) == []
    file.write_bytes(counted().data)
    with pytest.raises(ConfigError, match=r"counts .*given\.ngram: has .* bytes"):
        await take(connection(hosts[0], counts), tmp_path / "state", counts=file)


async def test_they_are_fetched_from_a_holder_and_kept_for_the_next_start(
    hosts: list[Host], counts: NgramModel, tmp_path: Path
) -> None:
    first, newcomer = hosts
    file = tmp_path / "given.ngram"
    file.write_bytes(counts.data)
    await take(connection(first, counts), tmp_path / "first", counts=file)  # its answers stay registered
    assert await take(connection(newcomer, counts, on_record(first)), tmp_path) == ["state"]
    (kept,) = (tmp_path / "counts").iterdir()
    assert kept.read_bytes() == bytes(counts.data)
    assert await take(connection(newcomer, counts), tmp_path) == []  # nobody is asked
    kept.write_bytes(b"damaged")
    (told, fetched) = await take(connection(newcomer, counts, on_record(first)), tmp_path)
    assert "taking them from others" in told and fetched == "state"


async def test_where_nobody_has_them_a_text_is_counted(
    hosts: list[Host], counts: NgramModel, text: Path, tmp_path: Path
) -> None:
    (told,) = await take(connection(hosts[0], counts), tmp_path, data=str(text))
    assert told == f"nobody serves the counts yet: counting {text}"
    assert (tmp_path / "counts" / file_name(section(counts))).read_bytes() == bytes(counts.data)


async def test_a_text_of_which_other_counts_come_is_refused(
    hosts: list[Host], counts: NgramModel, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(TEXT[100:])
    with pytest.raises(ConfigError, match="does not give the counts of counts-"):
        await take(connection(hosts[0], counts), tmp_path, data=str(other))
    with pytest.raises(ConfigError, match="nobody on record has the counts yet: give their file with counts="):
        await take(connection(hosts[0], counts), tmp_path)


# -- who owns them -----------------------------------------------------------------------------------------------------


def test_only_who_cannot_train_takes_the_counts_unasked(counts: NgramModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody does in a run that has none."""
    manifest, bare = manifest_with(counts), manifest_with(None)
    assert counts_only(COUNTS, manifest)
    assert not counts_only(0, manifest)
    for megabytes, taken in ((100_000, False), (300, True)):
        free = SimpleNamespace(available=megabytes * 10**6)
        monkeypatch.setattr(joining.psutil, "virtual_memory", lambda free=free: free)
        assert counts_only(None, manifest) == taken
        assert not counts_only(None, bare)
    check_memory(manifest, counts_only=True)
    with pytest.raises(JoinError, match="one block of counts-"):
        check_memory(manifest)
    monkeypatch.setattr(joining.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8))
    with pytest.raises(JoinError, match="serving the n-gram counts of counts-"):
        check_memory(manifest, counts_only=True)
    assert psutil.virtual_memory().available == 10**8


def test_a_run_without_counts_has_none_to_own(counts: NgramModel) -> None:
    check_block(COUNTS, manifest_with(counts))
    with pytest.raises(ConfigError, match=r'block="counts": .* has no n-gram counts'):
        check_block(COUNTS, manifest_with(None))
    with pytest.raises(ConfigError, match="is for who serves the counts"):
        PeerConfig(state_dir=Path(), block=0, counts=Path("file")).validate()


def test_a_file_that_cannot_be_the_counts_is_told_before_anybody_is_asked(counts: NgramModel, tmp_path: Path) -> None:
    file, manifest = tmp_path / "counts.ngram", tmp_path / "swarm.toml"
    manifest.write_text(manifest_with(counts).to_toml())
    with pytest.raises(ConfigError, match=r"counts .*counts\.ngram: cannot be read"):
        read_inputs(PeerConfig(state_dir=tmp_path, block=COUNTS, counts=file))
    file.write_bytes(counted().data)
    read_inputs(PeerConfig(state_dir=tmp_path, block=COUNTS, counts=file))  # of some run: which one is not known yet
    with pytest.raises(ConfigError, match=r"counts .*counts\.ngram: has .* bytes"):
        read_inputs(PeerConfig(state_dir=tmp_path, block=COUNTS, counts=file, manifest=manifest))
    file.write_bytes(counts.data)
    assert read_inputs(PeerConfig(state_dir=tmp_path, block=COUNTS, counts=file, manifest=manifest)).text is None


async def test_rounds_are_counted_as_for_those_who_train(counts: NgramModel) -> None:
    manifest = manifest_with(counts)
    slept: list[float] = []

    class Clock(SystemClock):
        def now(self) -> float:
            return 150.0  # in the third round

        async def sleep_until(self, when: float) -> None:
            slept.append(when)

    here: Any = SimpleNamespace(clock=Clock())
    await rounds_over(manifest, here, 2)
    assert slept == [240.0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rounds_over(manifest, here, None)
