"""Which text is measured."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from blockswarm.model.corpus import open_corpus
from blockswarm.model.errors import CorpusError
from blockswarm.swarm.errors import ClientError
from blockswarm.swarm.evaluation import SHORTEST_STRETCH, STRETCHES, read_stretches


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    """A file in which every line tells where it stands."""
    path = tmp_path / "numbered.txt"
    path.write_text("".join(f"{number:07d}\n" for number in range(12_500)))
    return str(path)


def test_a_corpus_is_measured_on_its_held_out_part(numbered: str) -> None:
    heldout = open_corpus(numbered, context=128).heldout.tobytes()
    assert read_stretches(numbered, context=128, max_bytes=1 << 20) == [heldout]


def test_a_long_text_is_taken_in_evenly_spread_stretches(numbered: str) -> None:
    stretches = read_stretches(numbered, context=128, max_bytes=8192, whole=True)
    text = Path(numbered).read_bytes()
    assert [len(stretch) for stretch in stretches] == [8192 // STRETCHES] * STRETCHES
    begins = [text.index(stretch) for stretch in stretches]
    assert begins[0] == 0 and begins[-1] == len(text) - len(stretches[-1])
    gaps = {after - before for before, after in itertools.pairwise(begins)}
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("limit", [2, 100, SHORTEST_STRETCH, 1000, 3000])
def test_the_limit_holds_and_stretches_stay_long(numbered: str, limit: int) -> None:
    stretches = read_stretches(numbered, context=128, max_bytes=limit, whole=True)
    assert sum(map(len, stretches)) <= limit
    assert all(len(stretch) >= min(limit, SHORTEST_STRETCH) for stretch in stretches)


def test_the_same_text_every_time(numbered: str) -> None:
    assert read_stretches(numbered, context=128, max_bytes=999) == read_stretches(numbered, context=128, max_bytes=999)


def test_what_cannot_be_measured_is_named(tmp_path: Path, numbered: str) -> None:
    (tmp_path / "one").write_text("x")
    with pytest.raises(ClientError, match="one: holds 1 bytes"):
        read_stretches(str(tmp_path / "one"), context=128, max_bytes=100, whole=True)
    with pytest.raises(ClientError, match=r"missing: cannot be read: No such file"):
        read_stretches(str(tmp_path / "missing"), context=128, max_bytes=100, whole=True)
    with pytest.raises(CorpusError, match="missing"):
        read_stretches(str(tmp_path / "missing"), context=128, max_bytes=100)
    with pytest.raises(ClientError, match="at most 1 bytes"):
        read_stretches(numbered, context=128, max_bytes=1)
