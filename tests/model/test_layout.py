from __future__ import annotations

import hashlib

import numpy as np
import pytest

from blockswarm.model.config import SIZES, ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import (
    CHUNK_BYTES,
    EMBEDDING,
    block_layout,
    bytes_chunk_digests,
    chunk_digests,
    embedding_layout,
    layout_of,
    state_digest,
)


def test_entries_fill_the_vector_without_gap_or_overlap(config: ModelConfig) -> None:
    layout = block_layout(config)
    position = 0
    for entry in layout.entries:
        assert entry.offset == position
        position += entry.size
    assert layout.size == position
    assert len({entry.name for entry in layout.entries}) == len(layout.entries)


def test_views_share_memory_with_the_vector(config: ModelConfig) -> None:
    layout = block_layout(config)
    flat = layout.genesis(0, 0)
    views = layout.views(flat)
    assert views["z_in"].shape == (config.dim, config.dim)
    views["z_in"][:] = 5.0
    assert (flat == 5.0).sum() == config.dim**2
    with pytest.raises(ModelError, match=r"expected float32\[\d+\]"):
        layout.views(flat[:-1])
    with pytest.raises(ModelError, match="float64"):
        layout.views(flat.astype(np.float64))


def test_genesis_is_the_same_on_every_machine() -> None:
    # These digests are a promise: a machine that computes others cannot join a run. A failure on a new platform means
    # that Layout.genesis is not exact there; a failure after a change of the layout, that older runs cannot be joined.
    tiny = SIZES["tiny"]
    assert (
        state_digest(block_layout(tiny).genesis(0, 0)).hex()
        == "647560600a4fcd7aabb881aa194da0dc364dc0af14cbdd7467368128b2dec4cc"
    )
    assert (
        state_digest(embedding_layout(tiny).genesis(0, EMBEDDING)).hex()
        == "eb83ca5084cca3e2ac9a11357e37636d0215b255d1d98e7ed8f15861af572a9e"
    )
    mlp = ModelConfig(kind="mlp", dim=32, blocks=2, layers=1, heads=2, context=16)
    assert (
        state_digest(block_layout(mlp).genesis(12345, 1)).hex()
        == "e47398f8f360d50c414825a6bc4fe73a0146b482da0a649e2df1b58b0de82a26"
    )


def test_genesis_differs_between_seeds_and_blocks() -> None:
    layout = block_layout(SIZES["tiny"])
    digests = {state_digest(layout.genesis(seed, block)) for seed in (0, 1, 2**70) for block in range(3)}
    assert len(digests) == 9


def test_genesis_values_are_exact_multiples_within_their_spread(config: ModelConfig) -> None:
    layout = block_layout(config)
    views = layout.views(layout.genesis(3, 1))
    for entry in layout.entries:
        values = views[entry.name]
        assert np.all(np.abs(values - entry.centre) <= np.float32(entry.spread))
        if entry.spread and entry.size > 1000:
            assert np.std(values) == pytest.approx(entry.spread / 3**0.5, rel=0.05)
    assert not views["z_in"].any()
    assert not views["out"].any()


def test_a_digest_names_the_bytes_in_chunks_of_a_mebibyte() -> None:
    flat = np.arange(CHUNK_BYTES // 4 + 10, dtype=np.float32)
    data = flat.astype("<f4").tobytes()
    expected = [hashlib.sha256(data[:CHUNK_BYTES]).digest(), hashlib.sha256(data[CHUNK_BYTES:]).digest()]
    assert chunk_digests(flat) == expected
    assert state_digest(flat) == hashlib.sha256(b"".join(expected)).digest()
    assert bytes_chunk_digests(memoryview(data)) == expected


def test_a_digest_sees_every_bit_but_not_the_memory_order() -> None:
    flat = np.zeros(1000, np.float32)
    assert state_digest(np.zeros(2000, np.float32)[::2]) == state_digest(flat)
    flat[777] = -0.0
    assert state_digest(flat) != state_digest(np.zeros(1000, np.float32))


def test_subjects_are_the_embedding_and_the_blocks() -> None:
    tiny = SIZES["tiny"]
    assert layout_of(tiny, EMBEDDING) == embedding_layout(tiny)
    assert layout_of(tiny, 2) == block_layout(tiny)
    with pytest.raises(ModelError, match="subject 3 does not exist"):
        layout_of(tiny, 3)
