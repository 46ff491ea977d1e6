"""N-gram counts in a real swarm: owned by volunteers who train nothing, part of every answer, fetched when wanted."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from blockswarm.model.corpus import open_corpus
from blockswarm.model.layout import COUNTS
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.peer.local import LocalSwarm
from blockswarm.peer.node import Node
from blockswarm.swarm import LocalModel
from blockswarm.swarm.counts.files import describe
from tests.integration.clients import connected
from tests.integration.small import PATIENCE, peer_id, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ASKED = {"prompt": "The ", "max_bytes": 48, "seed": 5, "temperature": 1.0, "pin": "genesis"}


@dataclass(frozen=True)
class Counted:
    """A swarm of one block with counts in its manifest; the last tests kill those who hold them."""

    swarm: LocalSwarm
    file: Path
    trains: Node
    first: Node
    """Was given the file."""
    second: Node
    """Has fetched it from the first."""

    @property
    def nodes(self) -> list[Node]:
        """Who trains, then who owns counts."""
        return [self.trains, self.first, self.second]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the clients of this module keep what they fetch."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def counted(start_swarm: Callable[..., LocalSwarm], tmp_path_factory: pytest.TempPathFactory) -> Counted:
    file = tmp_path_factory.mktemp("counts") / "docs.ngram"
    file.write_bytes(build_ngram_file(open_corpus("docs", context=32).train, order=6))
    swarm = start_swarm(blocks=1, counts=describe(file, 0.5))
    trains = swarm.start_volunteer(0)
    first = swarm.start_volunteer(None, "--block", "counts", "--counts", str(file))
    first.wait_event("ready", timeout=PATIENCE)
    second = swarm.start_volunteer(None, "--block", "counts")
    second.wait_event("ready", timeout=PATIENCE)
    trains.wait_event("training", timeout=PATIENCE)
    return Counted(swarm, file, trains, first, second)


def test_status_shows_who_holds_the_counts(counted: Counted) -> None:
    def listed() -> list[str] | None:
        status = json.loads(counted.swarm.command("status", "--json", timeout=PATIENCE).stdout)
        assert [block["block"] for block in status["blocks"]] == [0]
        ids = sorted(holder["peer_id"] for holder in status["counts"]["holders"])
        return ids if status["counts"]["live"] == 2 else None

    ids = wait_until(listed, "both holders of counts", nodes=[counted.first, counted.second])
    assert ids == sorted(map(peer_id, (counted.first, counted.second)))
    assert "counts: 2 live" in counted.swarm.command("status", timeout=PATIENCE).stdout


def test_who_owns_the_counts_needs_little_memory(counted: Counted) -> None:
    """Less than a volunteer who trains a block, even one as tiny as here; it is Python, torch and hivemind alone."""
    trains, *owners = (psutil.Process(node.process.pid).memory_info().rss for node in counted.nodes)
    assert max(owners) < min(trains, 220 << 20), [size >> 20 for size in (trains, *owners)]


def test_a_newcomer_has_fetched_the_file_from_a_holder(counted: Counted) -> None:
    fetched = counted.second.find("state")
    assert fetched is not None and fetched["subject"] == COUNTS
    kept = list((counted.swarm.folder / counted.second.name / "counts").iterdir())
    assert [path.read_bytes() for path in kept] == [counted.file.read_bytes()]


def test_counts_make_an_untrained_model_as_good_as_half_of_them(counted: Counted) -> None:
    options = ("--states", "genesis", "--readout", "parallel", "--max-bytes", "1024", "--json")
    figures = json.loads(counted.swarm.command("evaluate", *options, timeout=PATIENCE).stdout)
    assert figures["missing"] == {"parallel": []}
    assert 1.0 < figures["ce"]["parallel"] < math.log(256) - 1.5


def test_an_export_carries_the_counts_and_gives_the_same_figures(counted: Counted, tmp_path: Path) -> None:
    folder, text = tmp_path / "model", "The class statement defines a class. " * 8
    with connected(counted.swarm) as client:

        def measured() -> tuple[float, float] | None:
            told = client.do("export", folder=str(folder), force=True)
            assert told.error is None, told.text
            model = LocalModel.open(folder, device="cpu")
            there = client.do("score", text=text, pin=model.pin.as_json())
            return None if there.error else (model.score(text).nats_per_byte, there.result)

        here, there = wait_until(measured, "export", nodes=counted.swarm.volunteers())
    assert here == pytest.approx(there, abs=1e-6)
    assert (folder / "counts.ngram").read_bytes() == counted.file.read_bytes()


@pytest.fixture(scope="module")
def plain(counted: Counted) -> str:
    """The text as decoding byte by byte gives it, from holders."""
    with connected(counted.swarm) as client:
        answer = client.do("generate", **ASKED, draft="none")
    assert answer.error is None, answer.text
    return str(answer.result)


def test_the_text_is_the_same_from_holders_and_from_a_file_that_was_fetched(
    counted: Counted, plain: str, cache: Path
) -> None:
    for path in cache.rglob("*.ngram"):
        path.unlink()  # the export has left one
    with connected(counted.swarm) as client:
        assert client.do("generate", **ASKED, draft="ngram").result == plain

        def fetched() -> bool:
            answer = client.do("generate", **ASKED, draft="counts")
            assert answer.result == plain
            return any(event["text"].startswith("the counts are here") for event in answer.events)

        wait_until(fetched, "the counts", nodes=[counted.second])
    (file,) = cache.rglob("*.ngram")
    assert file.read_bytes() == counted.file.read_bytes()


def test_another_holder_takes_over_and_without_any_the_counts_are_named(
    counted: Counted, plain: str, cache: Path
) -> None:
    for path in cache.rglob("*.ngram"):
        path.unlink()
    with connected(counted.swarm) as client:
        client.do("begin", **ASKED, draft="none")
        text = client.do("more", characters=5).result
        counted.first.kill(signal.SIGKILL, family=True)
        text += client.do("more").result
        assert text == plain
        # The other one leaves in good order.
        counted.second.kill(signal.SIGINT)
        assert counted.second.wait_ended(PATIENCE) == 0
        answer = client.do("generate", **ASKED)
        assert (answer.error, answer.block) == ("NoHolderError", COUNTS)
        assert "no live holder of the counts" in answer.text
        effort = client.do("generate", **ASKED, best_effort=True)
        assert effort.last["missing"] == [COUNTS]
        assert effort.warnings == ["answered without the counts: nobody serves it"]
    given = ("generate", "The ", "--counts", str(counted.file), "--max-bytes", "16", "--json")
    assert json.loads(counted.swarm.command(*given, timeout=PATIENCE).stdout)["bytes"] == 16


def test_nobody_to_fetch_from_is_one_line(counted: Counted) -> None:
    """After the last test nobody has the counts."""
    node = counted.swarm.start_volunteer(None, "--block", "counts", "--counts", str(counted.file.with_name("none")))
    assert node.wait_ended(PATIENCE) == 2
    assert "cannot be read" in node.last_words()
