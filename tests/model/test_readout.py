from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from blockswarm.model.block import Block
from blockswarm.model.config import RECIPES, ModelConfig
from blockswarm.model.errors import ModelError
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.mixing import mix_log_probs, sweep_noise
from blockswarm.model.partition import sweep_sigmas
from blockswarm.model.readout import BlockReader

PAPER = RECIPES["paper"]
Weights = Callable[[ModelConfig, int], tuple[np.ndarray, np.ndarray]]
Readout = Callable[[list[BlockReader], np.ndarray], np.ndarray]


def parallel(readers: list[BlockReader], x: np.ndarray) -> np.ndarray:
    return mix_log_probs([reader.log_probs(x) for reader in readers])


def sweep(readers: list[BlockReader], x: np.ndarray) -> np.ndarray:
    z: np.ndarray | None = np.stack([sweep_noise(i, 0, x.shape[1], readers[0].config.dim) for i in range(len(x))])
    for reader in readers:
        assert z is not None
        logp, z = reader.sweep_step(x, z)
    assert z is None
    return logp


@pytest.fixture
def readers(config: ModelConfig, weights: Weights) -> list[BlockReader]:
    return [BlockReader(config, PAPER, block, *weights(config, block)) for block in range(3)]


@pytest.mark.parametrize("readout", [parallel, sweep])
def test_rows_are_normalised_log_probabilities(readers: list[BlockReader], text: np.ndarray, readout: Readout) -> None:
    logp = readout(readers, text)
    assert logp.shape == (4, 24, 256)
    assert logp.dtype == np.float32
    np.testing.assert_allclose(np.exp(logp.astype(np.float64)).sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("readout", [parallel, sweep])
def test_an_untrained_model_knows_nothing(config: ModelConfig, text: np.ndarray, readout: Readout) -> None:
    table = embedding_layout(config).genesis(0, EMBEDDING)
    for recipe in RECIPES.values():
        new = [BlockReader(config, recipe, b, block_layout(config).genesis(0, b), table) for b in range(3)]
        logp = readout(new, text)[:, :-1]
        assert -np.take_along_axis(logp, text[:, 1:, None].astype(int), axis=2).mean() >= 5.3
    np.testing.assert_allclose(parallel(new, text), -math.log(256), atol=1e-5)


def leaks(readers: list[BlockReader], text: np.ndarray, readout: Readout) -> bool:
    """Whether changing a byte changes the prediction of a row before it."""
    plain = readout(readers, text)
    for changed in (1, 9, 23):
        other = text.copy()
        other[:, changed] ^= 0x5A
        moved = readout(readers, other)
        assert not np.array_equal(plain[:, changed], moved[:, changed]), "the changed byte must matter to its own row"
        if np.abs(plain[:, :changed] - moved[:, :changed]).max() > 1e-6:
            return True
    return False


@pytest.mark.parametrize("readout", [parallel, sweep])
def test_a_later_byte_never_changes_an_earlier_row(
    readers: list[BlockReader], text: np.ndarray, readout: Readout
) -> None:
    assert not leaks(readers, text, readout)


@pytest.mark.parametrize("readout", [parallel, sweep])
def test_the_leak_test_finds_a_leak(
    readers: list[BlockReader], text: np.ndarray, readout: Readout, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = F.scaled_dot_product_attention
    read_bytes = Block._read_bytes
    if readers[0].config.kind == "transformer":
        monkeypatch.setattr(
            torch.nn.functional, "scaled_dot_product_attention", lambda q, k, v, is_causal: attend(q, k, v)
        )
    else:
        monkeypatch.setattr(
            Block, "_read_bytes", lambda self, x, c: read_bytes(self, x, c) + read_bytes(self, x.roll(-1, 1), c)
        )
    assert leaks(readers, text, readout)


def test_the_sweep_is_euler_steps_down_the_partition(readers: list[BlockReader], text: np.ndarray) -> None:
    config = readers[0].config
    sigmas = sweep_sigmas(PAPER, 3)
    assert sigmas[0] == PAPER.sigma_max
    noise = sweep_noise(0, 0, text.shape[1], config.dim)[None].repeat(len(text), 0)
    z = noise * math.sqrt(1 + PAPER.sigma_max**2)
    given: np.ndarray | None = noise
    for index, reader in enumerate(readers):
        block = reader._block
        table = block.table()
        zhat = block.denoise(torch.from_numpy(text), torch.from_numpy(z), torch.full((len(text),), sigmas[index]))
        p = block.logits(zhat, table).softmax(-1)
        assert given is not None
        logp, given = reader.sweep_step(text, given.astype(np.float32))
        np.testing.assert_allclose(np.exp(logp), p.numpy(), atol=1e-5)
        if given is not None:
            slope = (z - (p @ table).numpy()) / sigmas[index]
            z = (z + (sigmas[index + 1] - sigmas[index]) * slope).astype(np.float32)
            np.testing.assert_allclose(given, z, atol=1e-4)
    assert given is None


@pytest.mark.parametrize("pieces", [[24], [1] * 24, [5, 1, 1, 10, 7], [23, 1]])
def test_reading_on_with_a_cache_equals_reading_the_whole(
    readers: list[BlockReader], text: np.ndarray, pieces: list[int]
) -> None:
    for reader in readers:
        caches = [reader.open() for _ in text]
        rows = [
            reader.extend(list(zip(caches, piece, strict=True)))
            for piece in np.split(text, np.cumsum(pieces)[:-1], axis=1)
        ]
        np.testing.assert_allclose(np.concatenate(rows, axis=1), reader.log_probs(text), atol=1e-5)


def test_windows_of_any_length_are_read_on_together(readers: list[BlockReader], text: np.ndarray) -> None:
    for reader in readers:
        caches = [reader.open() for _ in range(3)]
        reader.extend([(caches[0], text[0, :5]), (caches[2], text[2, :17])])
        found = reader.extend([(caches[0], text[0, 5:6]), (caches[1], text[1, :9]), (caches[2], text[2, 17:])])
        whole = reader.log_probs(text)
        for rows, expected in zip(found, (whole[0, 5:6], whole[1, :9], whole[2, 17:]), strict=True):
            np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_a_window_goes_on_from_where_it_was_cut_back_to(readers: list[BlockReader], text: np.ndarray) -> None:
    for reader in readers:
        cache = reader.open()
        reader.extend([(cache, text[0])])
        cache.truncate(11)
        mixed = np.concatenate([text[0, :11], text[1, 11:]])
        np.testing.assert_allclose(
            reader.extend([(cache, mixed[11:])])[0], reader.log_probs(mixed[None])[0, 11:], atol=1e-5
        )


@pytest.mark.parametrize("pieces", [[24], [1] * 24, [5, 1, 1, 10, 7]])
def test_the_sweep_reads_on_with_a_cache_too(readers: list[BlockReader], text: np.ndarray, pieces: list[int]) -> None:
    z: np.ndarray | None = sweep_noise(3, 0, 24, readers[0].config.dim)
    for reader in readers:
        assert z is not None
        rows, after = reader.sweep_step(text[:1], z[None])
        cache, begin, found = reader.open(), 0, []
        for size in pieces:
            part = slice(begin, begin + size)
            found += reader.extend_sweep([(cache, text[0, part], z[part])])
            begin += size
        np.testing.assert_allclose(np.concatenate([part for part, _ in found]), rows[0], atol=1e-5)
        if after is not None:
            steps = [step for _, step in found if step is not None]
            np.testing.assert_allclose(np.concatenate(steps), after[0], atol=1e-4)
        z = None if after is None else after[0]


def test_a_short_window_is_the_beginning_of_a_longer_one(readers: list[BlockReader], text: np.ndarray) -> None:
    for length in (1, 2, 3, 17):
        short = readers[0].log_probs(text[:, :length])
        np.testing.assert_allclose(short, readers[0].log_probs(text)[:, :length], atol=1e-5)


def test_large_requests_are_computed_in_parts(
    readers: list[BlockReader], text: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = readers[0].log_probs(text)
    monkeypatch.setattr("blockswarm.model.readout._POSITIONS_AT_ONCE", 50)
    np.testing.assert_allclose(readers[0].log_probs(text), whole, atol=1e-5)


def test_read_only_input_is_fine(readers: list[BlockReader]) -> None:
    window = np.frombuffer(b"received bytes", np.uint8)[None]
    assert readers[0].log_probs(window).shape == (1, 14, 256)


def test_what_does_not_fit_is_refused(readers: list[BlockReader], text: np.ndarray) -> None:
    reader, dim = readers[0], readers[0].config.dim
    with pytest.raises(ModelError, match="longer than the model's context 24"):
        reader.log_probs(np.zeros((1, 25), np.uint8))
    with pytest.raises(ModelError, match="expected uint8"):
        reader.log_probs(text.astype(np.int64))
    with pytest.raises(ModelError, match="expected float32"):
        reader.sweep_step(text, np.zeros((4, 24, dim + 1), np.float32))
    cache = reader.open()
    reader.extend([(cache, text[0])])
    with pytest.raises(ModelError, match="window of 25"):
        reader.extend([(cache, text[0, :1])])
    for nothing in ([], [(reader.open(), text[0, :0])], [(reader.open(), text)]):
        with pytest.raises(ModelError, match="at least one byte"):
            reader.extend(nothing)
    with pytest.raises(ModelError, match="z is float32"):
        reader.extend_sweep([(reader.open(), text[0, :2], np.zeros((1, dim), np.float32))])
